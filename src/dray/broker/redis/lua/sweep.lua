-- sweep: does one bounded kind of upkeep in one queue.
-- uses: promote crashes hand_over forget_queue_check sleepers
--
-- ARGV[3] promote | withdraw | expire | prune | owned  [4] limit  [5] prune: for how many ms the feed of an empty queue
--         is kept  [6] and the queue itself  [7] withdraw: in how many ms a run that was handed over must be confirmed
--         [8..] owned: pairs of an id that prune returned, 1 if its owner lives
-- returns {number of jobs, aftermath, the newest feed number of a queue that may be forgotten (forget_queue_name), or
--          0, jobs that may be pruned unless their owner lives: id, owner}
local kind, limit = ARGV[3], tonumber(ARGV[4])
local forgettable, owned = 0, {}

-- Members of `ttl` and `deadline` whose time has come, each once, the longest overdue first.
local function overdue()
  local found, since = {}, {}
  for _, key in ipairs({ 'ttl', 'deadline' }) do
    local late = call('ZRANGEBYSCORE', Q .. key, '-inf', now, 'WITHSCORES', 'LIMIT', 0, limit)
    for i = 1, #late, 2 do
      local text, time = late[i], tonumber(late[i + 1])
      if not since[text] then found[#found + 1] = text end
      since[text] = math.min(since[text] or time, time)
    end
  end
  table.sort(found, function(one, other)
    if since[one] ~= since[other] then return since[one] < since[other] end
    return one < other
  end)
  return found, since
end

-- Runs that were handed over and not confirmed in time, the oldest first; of the same moment in the order of arrival.
local function unconfirmed()
  local early = call('ZRANGEBYSCORE', Q .. 'handed', '(' .. at, '+inf', 'LIMIT', 0, limit)
  for _, ref in ipairs(early) do call('ZADD', Q .. 'handed', at, ref) end -- the clock went back
  local late = call('ZRANGEBYSCORE', Q .. 'handed', '-inf', now - ARGV[7], 'WITHSCORES', 'LIMIT', 0, limit)
  local found = {}
  for i = 1, #late, 2 do
    local run, id = string.match(late[i], '^(%d+) (.*)$')
    local job = load(id)
    found[#found + 1] = { ref = late[i], run = tonumber(run), job = job, time = late[i + 1] .. (job and job.stamp or '') }
  end
  table.sort(found, function(one, other) return one.time < other.time end)
  return found
end

-- Ends such runs: their sessions may be frozen.
local function withdraw()
  local done = 0
  for _, late in ipairs(unconfirmed()) do
    for _, one in ipairs(late.job and late.job.runs or {}) do
      if one[1] == late.run then
        call('SADD', Q .. 'v:' .. one[2], late.ref)
        call('PUBLISH', channel('s', one[2]), '1')
        crash(late.job, late.run, false, 0)
        done = done + 1
      end
    end
    call('ZREM', Q .. 'handed', late.ref)
  end
  return done
end

local function expire()
  local late, since = overdue()
  for i = 1, math.min(#late, limit) do
    local job = load(id_of(late[i]))
    hint = string.format('2%016.0f', since[late[i]]) .. string.sub(late[i], 1, 16)
    local reason = job and not_started[job.state] and why_too_late(job)
    if reason then
      bury(job, reason)
    else
      call('ZREM', Q .. 'ttl', late[i])
      call('ZREM', Q .. 'deadline', late[i])
    end
  end
  return math.min(#late, limit)
end

local function drop_keys()
  local past = call('ZRANGEBYSCORE', Q .. 'keyttl', '-inf', now, 'LIMIT', 0, limit)
  if #past > 0 then
    many('HDEL', Q .. 'key', past)
    many('ZREM', Q .. 'keyttl', past)
  end
end

-- A watcher that did not fetch its mail for a day is gone.
local function drop_mail()
  for _, watcher in ipairs(call('SMEMBERS', Q .. 'mailed')) do
    call('ZREMRANGEBYSCORE', Q .. 'm:' .. watcher, '-inf', now - 86400000)
    if call('EXISTS', Q .. 'm:' .. watcher) == 0 then call('SREM', Q .. 'mailed', watcher) end
  end
end

-- A live sleeper registers again long before.
local function drop_sleepers()
  local asleep = call('HGETALL', Q .. 'sleep')
  for i = 1, #asleep, 2 do
    local until_ = sleeper_until(asleep[i + 1]) or 0
    if until_ + 60000 < now then call('HDEL', Q .. 'sleep', asleep[i]) end
  end
end

-- Drops the old feed of a queue without jobs. One number is skipped, so that a reader that comes back sees a gap.
local function drop_feed()
  if call('EXISTS', Q .. 'job', Q .. 'head') > 0 then return end
  local n = call('HMGET', Q .. 'n', 'feed', 'idle', 'base')
  if call('EXISTS', Q .. 'feed') == 1 then
    local newest = call('XRANGE', Q .. 'feed', (n[1] or 0) .. '-0', '+', 'COUNT', 1)[1]
    local written = newest and tonumber(newest[2][2]) or 0
    if now < written + tonumber(ARGV[5]) then return end
    call('DEL', Q .. 'feed')
    call('HINCRBY', Q .. 'n', 'feed', 1)
    call('HSET', Q .. 'n', 'idle', string.format('%.0f', written))
  elseif not n[2] then
    call('HSET', Q .. 'n', 'idle', at)
  elseif now >= n[2] + ARGV[6] and is_bare() then
    forgettable = (n[1] or 0) + (n[3] or 0) + 1
  end
end

local function prune()
  local old = call('ZRANGEBYSCORE', Q .. 'ended', '-inf', now, 'LIMIT', 0, limit)
  for _, text in ipairs(old) do
    local job = load(id_of(text))
    hint = '3'
    if not job then call('ZREM', Q .. 'ended', text)
    elseif job.options.owner then owned[#owned + 1], owned[#owned + 2] = job.id, job.options.owner
    else forget(job)
    end
  end
  call('ZREMRANGEBYSCORE', Q .. 'rate', '-inf', string.format('%.0f', now * 1000))
  drop_keys()
  drop_mail()
  drop_sleepers()
  drop_feed()
  return #old
end

-- Forgets jobs, or looks again later: less often, the older they are.
local function prune_owned()
  local done = 0
  for i = 8, #ARGV, 2 do
    local job = load(ARGV[i])
    if job and finished[job.state] and ARGV[i + 1] == '1' then
      local pause = math.max(60000, math.floor((now - job.finished) / 4))
      call('ZADD', Q .. 'ended', 'XX', string.format('%.0f', now + pause), member(job))
    elseif job and finished[job.state] then
      hint, done = '3', done + 1
      forget(job)
    end
  end
  drop_feed()
  return done
end

-- After the clock went back, times that are far ahead are void.
if kind == 'promote' then
  local before = tonumber(call('HGET', Q .. 'n', 'swept') or 0)
  if now < before - 1000 and call('EXISTS', Q .. 'blocked') == 1 then
    call('ZUNIONSTORE', Q .. 'blocked', 1, Q .. 'blocked', 'WEIGHTS', 0)
  end
  if call('EXISTS', Q .. 'blocked') == 1 then call('HSET', Q .. 'n', 'swept', at) end
end
local kinds = { promote = promote, withdraw = withdraw, expire = expire, prune = prune, owned = prune_owned }
local done = kinds[kind](limit)
if kind == 'promote' then hand_over() end
return { done, aftermath(), forgettable, owned }
