-- namespace: what every script of a namespace's own slot starts with.
--
-- KEYS[1]  `dray:{namespace}:`
-- ARGV[1]  now in ms; '' means the server's clock
local N, call = KEYS[1], redis.call
local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
