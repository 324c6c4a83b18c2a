-- copy_lease: copies the lease of a session from the namespace to a queue. Called by sweep.
-- uses: prelude
--
-- ARGV[3] session  [4] epoch  [5] the lease, as in take
-- returns 1
local stored = call('HGET', Q .. 's', ARGV[3])
if stored and string.match(stored, '^epoch=(%d+)') == ARGV[4] then call('HSET', Q .. 's', ARGV[3], ARGV[5]) end
return 1
