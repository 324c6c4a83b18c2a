-- last: the last request of a session in one queue.
-- uses: base
--
-- ARGV[3] session
-- returns {request, how many jobs earlier queues gave}
local stored = call('HGET', Q .. 't', ARGV[3])
local request, offset = string.match(stored or '0 0\n', '^(%d+) (%d+)\n')
return { tonumber(request), tonumber(offset) }
