-- pause_or_limit: pauses, resumes or limits a queue, or one task in it.
-- uses: close
--
-- ARGV[3] pause | resume | limits  [4] task or ''  [5] JSON: {by, reason}, or limits to change (null removes one)
-- returns known: 1 once the queue is enlisted
--
-- Stored as JSON. A pause: by, reason, at. Limits: rate and enqueue_rate {interval in µs, burst}, both also as text
-- (rate_text, enqueue_rate_text), max_running, max_ready, overflow, group_running.
local task = ARGV[4] == '' and '' or ':' .. ARGV[4]
if ARGV[3] == 'pause' then
  local pause = cjson.decode(ARGV[5])
  pause.at = now
  call('HSET', Q .. 'set', 'pause' .. task, cjson.encode(pause))
  note('U', '')
elseif ARGV[3] == 'resume' then
  call('HDEL', Q .. 'set', 'pause' .. task)
  note('V', '')
else
  local stored = call('HGET', Q .. 'set', 'limits' .. task)
  local limits = stored and cjson.decode(stored) or {}
  for name, value in pairs(cjson.decode(ARGV[5])) do
    if value == cjson.null then limits[name] = nil else limits[name] = value end
  end
  if next(limits) then call('HSET', Q .. 'set', 'limits' .. task, cjson.encode(limits))
  else call('HDEL', Q .. 'set', 'limits' .. task)
  end
  note('M', '')
  -- Lanes that limits held back are checked again, a bounded number with each take.
  if call('EXISTS', Q .. 'blocked') == 1 then
    call('ZUNIONSTORE', Q .. 'blocked', 1, Q .. 'blocked', 'WEIGHTS', 0)
  end
end
woken.all = true
close()
return call('HGET', Q .. 'n', 'known') or 0
