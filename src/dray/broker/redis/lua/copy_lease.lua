-- copy_lease: copies the lease of a session from the namespace to a queue. Called by sweep.
-- uses: base
--
-- ARGV[3] session  [4] epoch  [5] lease  [6] expires
-- returns 1
local stored = call('HGET', Q .. 's', ARGV[3])
if stored and cmsgpack.unpack(stored).e == tonumber(ARGV[4]) then
  call('HSET', Q .. 's', ARGV[3],
    cmsgpack.pack({ e = tonumber(ARGV[4]), l = tonumber(ARGV[5]), x = tonumber(ARGV[6]) }))
end
return 1
