-- pass_on: wakes another sleeper in place of one that was woken but is busy.
-- uses: limits close
--
-- ARGV[3..5] filter of the busy one: version, tasks, priorities
-- returns nothing
local filter, found = read_filter(3), 0
for _, class in ipairs(call('ZRANGE', Q .. 'index', 0, -1)) do
  if can_run(filter, class) and not paused(string.match(class, '^%d+|(.-)|')) then
    woken.ready[class], found = 1, found + 1
    if found == 16 then break end
  end
end
close()
