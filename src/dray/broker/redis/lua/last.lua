-- last: the last request of a session in one queue.
-- uses: base
--
-- ARGV[3] session
-- returns {request, how many jobs earlier queues gave}
local stored = call('HGET', Q .. 't', ARGV[3])
local last = stored and cmsgpack.unpack(stored) or { q = 0, o = 0 }
return { last.q, last.o }
