-- undepend: jobs that do not wait any more for jobs of this queue.
-- uses: base
--
-- ARGV[3..] pairs: dependency, dependant
-- returns dependencies that are not in this queue (any more) and that nobody waits for now
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
