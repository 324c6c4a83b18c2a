-- session_renew: opens sessions or renews their leases.
-- uses: namespace
--
-- `session` HASH name -> {e epoch, l lease, x expires}; `opened` counts openings, from the time of the first (ms)
-- `sq:NAME`  SET queues the session takes from: its lease is copied there (see take)
-- `clock`    the latest time seen, to notice when it goes back
--
-- ARGV[2..] pairs: session, lease
-- returns per beat {1 if it was opened, epoch, expires, queues}
local answers = {}

local function next_epoch()
  local epoch = call('INCR', N .. 'opened')
  return epoch == 1 and start_at_now('opened') or epoch
end

for i = 2, #ARGV, 2 do
  local name, lease = ARGV[i], tonumber(ARGV[i + 1])
  local stored = call('HGET', N .. 'session', name)
  local session = stored and cmsgpack.unpack(stored) or { e = next_epoch() }
  session.l, session.x = lease, now + lease
  call('HSET', N .. 'session', name, cmsgpack.pack(session))
  answers[#answers + 1] =
    { stored and 0 or 1, session.e, string.format('%.0f', session.x), call('SMEMBERS', N .. 'sq:' .. name) }
end
if now > tonumber(call('GET', N .. 'clock') or 0) then call('SET', N .. 'clock', now) end
return answers
