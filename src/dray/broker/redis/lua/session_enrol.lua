-- session_enrol: reads a session, and notes the queues that it is going to take from. A queue is noted here before it
-- hears of the session, so that the end of the session reaches it.
-- uses: namespace
--
-- ARGV[2] session  [3...] queues; none to read only
-- returns {state, epoch, the stored lease, its queues if none was given}; state: unknown, lost (past its lease), ok
local stored = call('HGET', N .. 'session', ARGV[2])
if not stored then return { 'unknown' } end
local session = read_lease(stored)
if ARGV[3] then call('SADD', N .. 'sq:' .. ARGV[2], unpack(ARGV, 3)) end
return {
  now >= session.expires and 'lost' or 'ok', session.epoch, stored,
  ARGV[3] and {} or call('SMEMBERS', N .. 'sq:' .. ARGV[2]),
}
