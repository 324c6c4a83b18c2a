-- namespace: the beginning of every script that works on the namespace's own slot.
--
-- KEYS[1]  `dray:{namespace}:`
-- ARGV[1]  now in ms; '' means the server's clock
local N, call = KEYS[1], redis.call
local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- A counter starts at the time in ms, so that no number is used twice after the server has lost its data.
local function start_at_now(counter)
  call('SET', N .. counter, string.format('%.0f', math.max(1, now)))
  return math.max(1, now)
end
