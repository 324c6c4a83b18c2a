-- clock: the time of a call.
--
-- ARGV[1]  now in ms; '' means the server's clock
-- `now` is a number, `at` the same as text: formatting a number costs more than most commands.
local call = redis.call
local now, at = tonumber(ARGV[1]), ARGV[1]
if not now then
  local time = call('TIME')
  at = time[1] .. string.sub('00000' .. time[2], -6, -4)
  now = tonumber(at)
end
