-- session_end: ends a session in the namespace; its name is free afterwards. `ending` lists what is left to do until
-- every queue has freed its runs, so that sweep can go on if the client dies.
-- uses: namespace
--
-- `ending` HASH "epoch\nname" -> 1 suspect, 0 not; `eq:EPOCH` SET queues to release
--
-- ARGV[2] session  [3] 1: only if its lease has run out  [4] 1 if its jobs are suspect
-- returns {epoch or 0, queues}
local stored = call('HGET', N .. 'session', ARGV[2])
if not stored then return { 0, {} } end
local session = read_lease(stored)
if ARGV[3] == '1' and now < session.expires then return { 0, {} } end
local queues = call('SMEMBERS', N .. 'sq:' .. ARGV[2])
if #queues > 0 then
  call('HSET', N .. 'ending', session.epoch .. '\n' .. ARGV[2], ARGV[4])
  call('RENAME', N .. 'sq:' .. ARGV[2], N .. 'eq:' .. session.epoch)
end
call('HDEL', N .. 'session', ARGV[2])
table.sort(queues)
return { session.epoch, queues }
