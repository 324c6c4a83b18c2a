-- collect_finished: returns and deletes the mail of a watcher: ids of watched jobs that ended while it did not listen.
-- uses: prelude
--
-- ARGV[3] watcher
-- returns ids
local mail = call('ZRANGE', Q .. 'm:' .. ARGV[3], 0, -1)
call('DEL', Q .. 'm:' .. ARGV[3])
call('SREM', Q .. 'mailed', ARGV[3])
return mail
