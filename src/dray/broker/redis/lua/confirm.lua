-- confirm: confirms a run that came with a wake-up, as the take would that is repeated.
-- uses: clock
--
-- ARGV[3] session  [4] "run id"
-- returns 1; 0 if the run is not to be confirmed any more: the take must be repeated; -1 if the lease is over
local Q = KEYS[1]
local lease = call('HGET', Q .. 's', ARGV[3])
if not lease then return 0 end
if now >= tonumber(string.match(lease, 'expires=(%d+)')) then return -1 end
return call('ZREM', Q .. 'handed', ARGV[4])
