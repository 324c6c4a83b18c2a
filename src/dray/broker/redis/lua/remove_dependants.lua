-- remove_dependants: removes dependants from jobs of this queue, when they stopped waiting. A node remembers them.
-- uses: job
--
-- ARGV[3] 1: nodes do not remember them either
-- ARGV[4..] pairs: dependency, dependant
-- returns dependencies that do not exist in this queue and have no dependants left
local gone = {}

local function remove(dependency, dependant)
  local key = Q .. 'd:' .. dependency
  local score, job = call('ZSCORE', key, dependant), ARGV[3] ~= '1' and load(dependency)
  if score and job and job.options.node then return call('ZADD', key, -math.abs(tonumber(score)), dependant) end
  call('ZREM', key, dependant)
end

for i = 4, #ARGV, 2 do
  local dependency = ARGV[i]
  remove(dependency, ARGV[i + 1])
  if call('EXISTS', Q .. 'd:' .. dependency) == 0 then
    if call('EXISTS', Q .. 'w:' .. dependency) == 0 then call('SREM', Q .. 'ends', dependency) end
    if call('HEXISTS', Q .. 'job', dependency) == 0 then gone[#gone + 1] = dependency end
  end
end
return gone
