-- sweep: one bounded kind of upkeep in one queue.
-- uses: base job line moves
--
-- ARGV[3] promote | expire | prune  [4] limit
-- returns {done, aftermath}
local kind, limit = ARGV[3], tonumber(ARGV[4])

local function expire()
  local late = call('ZRANGEBYSCORE', Q .. 'ttl', '-inf', now, 'LIMIT', 0, limit)
  for _, text in ipairs(late) do
    local job = load(id_of(text))
    hint = job and string.format('2%016.0f', job.e) .. string.sub(text, 1, 16) or ''
    if job and job.s == 'r' then bury(job, 'expired: it was not started within its ttl')
    else call('ZREM', Q .. 'ttl', text)
    end
  end
  return #late
end

local function drop_keys()
  local past = call('ZRANGEBYSCORE', Q .. 'keyttl', '-inf', now, 'LIMIT', 0, limit)
  if #past > 0 then
    many('HDEL', Q .. 'key', past)
    many('ZREM', Q .. 'keyttl', past)
  end
end

-- What nobody fetched for a day: its watcher is gone.
local function drop_mail()
  for _, watcher in ipairs(call('SMEMBERS', Q .. 'mailed')) do
    call('ZREMRANGEBYSCORE', Q .. 'm:' .. watcher, '-inf', now - DAY)
    if call('EXISTS', Q .. 'm:' .. watcher) == 0 then call('SREM', Q .. 'mailed', watcher) end
  end
end

-- Sleepers look again by themselves long before: whoever did not is dead.
local function drop_sleepers()
  local asleep = call('HGETALL', Q .. 'sleep')
  for i = 1, #asleep, 2 do
    if cjson.decode(asleep[i + 1]).u + 60000 < now then call('HDEL', Q .. 'sleep', asleep[i]) end
  end
end

local function prune()
  local old = call('ZRANGEBYSCORE', Q .. 'ended', '-inf', now, 'LIMIT', 0, limit)
  for _, text in ipairs(old) do
    local job = load(id_of(text))
    hint = '3'
    if job then forget(job) else call('ZREM', Q .. 'ended', text) end
  end
  call('ZREMRANGEBYSCORE', Q .. 'rate', '-inf', string.format('%.0f', now * 1000))
  drop_keys()
  drop_mail()
  drop_sleepers()
  return #old
end

-- After the clock went back, a time that is far ahead says nothing.
if kind == 'promote' then
  local before = tonumber(call('HGET', Q .. 'n', 'swept') or 0)
  if now < before - 1000 and call('EXISTS', Q .. 'blocked') == 1 then
    call('ZUNIONSTORE', Q .. 'blocked', 1, Q .. 'blocked', 'WEIGHTS', 0)
  end
  if call('EXISTS', Q .. 'blocked') == 1 then call('HSET', Q .. 'n', 'swept', at) end
end
local done = kind == 'promote' and promote(limit) or kind == 'expire' and expire() or kind == 'prune' and prune()
return { done, aftermath() }
