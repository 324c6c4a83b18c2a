-- session_renew: open sessions or keep them alive.
-- uses: namespace
--
-- `session` HASH name -> {e epoch, l lease, x expires}; `opened` how many were ever opened
-- `sq:NAME`  SET queues the session takes from: its lease is copied there (see take)
-- `clock`    the latest time seen, to notice when it goes back
--
-- ARGV[2..] pairs: session, lease
-- returns per beat {opened, epoch, expires, queues}
local answers = {}
for i = 2, #ARGV, 2 do
  local name, lease = ARGV[i], tonumber(ARGV[i + 1])
  local stored = call('HGET', N .. 'session', name)
  local session = stored and cmsgpack.unpack(stored) or { e = call('INCR', N .. 'opened') }
  session.l, session.x = lease, now + lease
  call('HSET', N .. 'session', name, cmsgpack.pack(session))
  answers[#answers + 1] =
    { stored and 0 or 1, session.e, string.format('%.0f', session.x), call('SMEMBERS', N .. 'sq:' .. name) }
end
if now > tonumber(call('GET', N .. 'clock') or 0) then call('SET', N .. 'clock', now) end
return answers
