-- session_renew: opens sessions or renews their leases.
-- uses: namespace
--
-- `session` HASH name -> "epoch=<n> lease=<ms> expires=<ms>"; `opened` counts openings, from the time of the first (ms)
-- `sq:NAME`  SET queues the session takes from: its lease is copied there (see take)
-- `clock`    the latest time seen, to notice when it goes back
--
-- ARGV[2..] pairs: session, lease
-- returns per beat {1 if it was opened, epoch, the stored lease, queues}
local answers = {}

local function next_epoch()
  local epoch = call('INCR', N .. 'opened')
  return epoch == 1 and start_at_now('opened') or epoch
end

for i = 2, #ARGV, 2 do
  local name, lease = ARGV[i], tonumber(ARGV[i + 1])
  local stored = call('HGET', N .. 'session', name)
  local session = stored and read_lease(stored) or { epoch = next_epoch() }
  session.lease, session.expires = lease, now + lease
  local text = lease_text(session)
  call('HSET', N .. 'session', name, text)
  answers[#answers + 1] = { stored and 0 or 1, session.epoch, text, call('SMEMBERS', N .. 'sq:' .. name) }
end
if now > tonumber(call('GET', N .. 'clock') or 0) then call('SET', N .. 'clock', now) end
return answers
