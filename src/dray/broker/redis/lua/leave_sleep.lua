-- leave_sleep: removes a waiter whose wait was cancelled. If it was just woken, all others are woken instead.
-- uses: close
--
-- ARGV[3] waiter
-- returns 1 if it was registered
local asleep = call('HDEL', Q .. 'sleep', ARGV[3])
if asleep == 0 then
  woken.all = true
  close()
end
return asleep
