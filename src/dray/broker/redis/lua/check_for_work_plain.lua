-- check_for_work_plain: the fast path of check_for_work, for a waiter that will sleep because no job is ready, due,
-- offered or asked to stop, and no run of the session became void. Takes and returns the same.
-- uses: plain
local function plainly()
  local waiter, session = ARGV[3], ARGV[5]
  if waiter == '' or ARGV[6] ~= '1' then return end
  if call('EXISTS', Q .. 'index', Q .. 'due', Q .. 'offer', Q .. 'asked', Q .. 'v:' .. session) > 0 then return end
  local now = tonumber(ARGV[1])
  if not now then
    local time = call('TIME')
    now = tonumber(time[1] .. string.sub('00000' .. time[2], -6, -4))
  end
  register_sleeper(waiter, now + ARGV[4], ARGV[10], ARGV[7], ARGV[8], ARGV[9])
  return { 0, 0, '' }
end

local quick = plainly()
if quick then return quick end
