-- remove_dependants: removes dependants from jobs of this queue, when they stopped waiting.
-- uses: base
--
-- ARGV[3..] pairs: dependency, dependant
-- returns dependencies that do not exist in this queue and have no dependants left
local gone = {}
for i = 3, #ARGV, 2 do
  local dependency = ARGV[i]
  local waiting = Q .. 'd:' .. dependency
  call('ZREM', waiting, ARGV[i + 1])
  if call('EXISTS', waiting) == 0 then
    if call('EXISTS', Q .. 'w:' .. dependency) == 0 then call('SREM', Q .. 'ends', dependency) end
    if call('HEXISTS', Q .. 'job', dependency) == 0 then gone[#gone + 1] = dependency end
  end
end
return gone
