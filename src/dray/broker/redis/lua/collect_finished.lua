-- mail: the jobs of this queue that a watcher waited for and that ended; each is told once.
-- uses: base
--
-- ARGV[3] watcher
-- returns ids
local mail = call('ZRANGE', Q .. 'm:' .. ARGV[3], 0, -1)
call('DEL', Q .. 'm:' .. ARGV[3])
call('SREM', Q .. 'mailed', ARGV[3])
return mail
