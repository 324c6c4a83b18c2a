-- rise: a waiter does not sleep in this queue any more. If it was rung but will not look, another is woken instead.
-- uses: base
--
-- ARGV[3] waiter  [4] 1 if it goes without looking
-- returns 1 if it was registered
local asleep = call('HDEL', Q .. 'sleep', ARGV[3])
if asleep == 0 and ARGV[4] == '1' then
  woken.all = true
  close()
end
return asleep
