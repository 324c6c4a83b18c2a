-- pass_on: wakes another sleeper in place of one that was woken but is busy.
-- uses: base
--
-- returns nothing
for _, class in ipairs(call('ZRANGE', Q .. 'index', 0, 15)) do woken.ready[class] = 1 end
close()
