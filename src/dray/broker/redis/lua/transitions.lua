-- moves: every way a job changes its place, as in dray.broker.memory.world. The new place is written before the old one
-- is left, except where both are the same kind of place.
-- uses: due
--
-- `key`      HASH key -> "id\nuntil" (until '' means: until its job ends); `keyttl` ZSET key -> until
-- `h:SESSION` SET "run id": what a session holds here; `v:SESSION` SET: runs that lost their validity
-- `asked`    HASH "run id" -> session: runs that are asked to stop; `prog` HASH "run id" -> progress
-- `offer`    ZSET id -> order of the offers
-- `ends`     SET ids whose end somebody waits for: `w:ID` SET watchers, `d:ID` ZSET jobs that depend on it
-- `m:WATCHER` ZSET id -> when it ended (kept for a day); `mailed` SET watchers with mail here
-- `out`      ZSET the outbox: "number\nstate\ndependant\ndependency\nhint", word that crosses queues;
--            the hint orders what one call did in several queues
local done_ttl, dead_ttl = string.match(ARGV[2], '^(%d+),(-?%d+),')
local NEVER = 2 ^ 51
local DAY = 86400000
local place = { w = 'w', s = 'd', t = 'd', r = 'r', h = 'h', o = 'e', d = 'e', c = 'e' }
local posted, forgotten, gone, hint = 0, {}, {}, ''
local newcomer -- a job that is being put, and may wait for one that makes way for it

local function forget_at(job)
  if job.s == 'd' then return job.z + (dead_ttl == '-1' and NEVER or tonumber(dead_ttl)) end
  local keep = tonumber(done_ttl)
  if job.s == 'o' and job.o.n then keep = math.max(keep, job.o.n) end
  return job.z + keep
end

local function enter(job)
  local kind = place[job.s]
  if kind == 'w' then call('ZADD', Q .. 'waiting', job.stamp, job.id)
  elseif kind == 'd' then
    call('ZADD', Q .. 'due', job.d, member(job))
    woken.due = math.min(woken.due or job.d, job.d)
  elseif kind == 'r' then
    declare(job)
    line_add(job.class, job.group, lane_of(job), { job.n, job.id })
  elseif kind == 'e' then call('ZADD', Q .. 'ended', string.format('%.0f', forget_at(job)), member(job))
  end
end

local function leave(job, state)
  local kind = place[state]
  if kind == 'w' then call('ZREM', Q .. 'waiting', job.id)
  elseif kind == 'd' then call('ZREM', Q .. 'due', member(job))
  elseif kind == 'r' then line_remove(job.class, job.group, lane_of(job), { job.id })
  elseif kind == 'e' then call('ZREM', Q .. 'ended', member(job))
  end
end

local function move(job, kind, to, run)
  local from = job.s
  job.s = to
  if from and place[from] == place[to] then
    leave(job, from)
    enter(job)
  else
    enter(job)
    if from then leave(job, from) end
  end
  if from then count(from, -1) end
  count(to, 1)
  save(job)
  note(kind, job.id, run)
end

local function set_expires(job, at)
  if at then call('ZADD', Q .. 'ttl', at, member(job))
  elseif job.e then call('ZREM', Q .. 'ttl', member(job))
  end
  job.e = at
end

local function key_holder(key)
  local stored = call('HGET', Q .. 'key', key)
  if not stored then return nil end
  local id, ends = string.match(stored, '^(.*)\n(%d*)$')
  return id, tonumber(ends)
end

local function take_key(key, id, ends)
  call('HSET', Q .. 'key', key, id .. '\n' .. (ends and string.format('%.0f', ends) or ''))
  if ends then call('ZADD', Q .. 'keyttl', ends, key) else call('ZREM', Q .. 'keyttl', key) end
end

local function claim_key(job)
  if job.o.k then take_key(job.o.k, job.id, job.o.kt and now + job.o.kt) end
end

local function other_key_holder(job)
  if not job.o.k then return nil end
  local id, ends = key_holder(job.o.k)
  if id and id ~= job.id and (not ends or now < ends) then return id end
end

-- `once` takes the key (again, if its key_ttl is over) unless another job has it by now.
local function free_key(job)
  if not job.o.k or other_key_holder(job) then return end
  if job.s == 'o' and job.o.n then return take_key(job.o.k, job.id, now + job.o.n) end
  if key_holder(job.o.k) == job.id then
    call('HDEL', Q .. 'key', job.o.k)
    call('ZREM', Q .. 'keyttl', job.o.k)
  end
end

-- To the end of the line, or to wait for its time.
local function line_up(job, kind, due, run)
  if due and due > now then
    job.d = due
    set_expires(job, nil)
    return move(job, kind, (job.f or 0) > 0 and 't' or 's', run)
  end
  if job.o.t and (job.r or 0) == 0 then
    set_expires(job, (due and kind == 'P' and due or now) + job.o.t)
  end
  job.d = nil
  job.n = call('HINCRBY', Q .. 'n', 'line', 1)
  move(job, kind, 'r', run)
end

local function withdraw_offer(job)
  if not job.of then return end
  job.of = nil
  call('ZREM', Q .. 'offer', job.id)
  save(job)
end

local function use_slots(job, by)
  slot('q', by)
  slot('t:' .. job.task, by)
  if job.group ~= '' then slot('g:' .. job.group, by) end
  if job.running_key ~= '' then slot('k:' .. job.running_key, by) end
end

-- A slot that is free again may let start what a limit held back.
local function slot_freed(job)
  if job.group ~= '' then unblock_cause('g:' .. job.group) end
  if job.running_key ~= '' then unblock_cause('k:' .. job.running_key) end
  if job.o.m or job.running_key ~= '' or setting('limits') or setting('limits:' .. job.task) then woken.all = true end
end

-- The run is over and its slot is free, once. Returns the session that held it.
local function end_run(job, run)
  local left, session = {}, nil
  for _, one in ipairs(job.R or {}) do
    if one[1] == run then session = one[2] else left[#left + 1] = one end
  end
  job.R = #left > 0 and left or nil
  local ref = run .. ' ' .. job.id
  call('SREM', Q .. 'h:' .. session, ref)
  call('HDEL', Q .. 'asked', ref)
  call('HDEL', Q .. 'prog', ref)
  use_slots(job, -1)
  slot_freed(job)
  if not job.R then withdraw_offer(job) end
  save(job)
  return session
end

local function post(dependant, dependency, ended)
  posted = 1
  local number = call('HINCRBY', Q .. 'n', 'out', 1)
  call('ZADD', Q .. 'out', number, table.concat({ number, ended, dependant, dependency, hint }, '\n'))
end

local function tell_dependants(id, ended)
  for _, dependant in ipairs(call('ZRANGE', Q .. 'd:' .. id, 0, -1)) do
    if dependant ~= newcomer then post(dependant, id, ended) end
  end
end

-- Word for those who watch the job, and for the jobs that wait for it. A watcher that listens is sent "id\n", and after
-- a plain success what became of the job (settle_plain), so that nobody has to read it; others find mail when they come.
local function tell(id, ended)
  if call('SISMEMBER', Q .. 'ends', id) == 0 then return end
  for _, watcher in ipairs(call('SMEMBERS', Q .. 'w:' .. id)) do
    if call('PUBLISH', channel('w', watcher), id .. '\n') == 0 then
      call('ZADD', Q .. 'm:' .. watcher, at, id)
      call('PEXPIRE', Q .. 'm:' .. watcher, 2 * DAY)
      call('SADD', Q .. 'mailed', watcher)
    end
  end
  call('DEL', Q .. 'w:' .. id)
  tell_dependants(id, ended)
  if call('EXISTS', Q .. 'd:' .. id) == 0 then call('SREM', Q .. 'ends', id) end
end

-- Those it waits for are told by the caller, as they may be in other slots.
local function stop_waiting(job)
  for _, dependency in ipairs(job.w or {}) do
    forgotten[#forgotten + 1] = dependency
    forgotten[#forgotten + 1] = job.id
  end
  job.w = nil
end

-- The end: other runs are void, the key is free or stays taken for `once`, who waits is told.
local function finish(job, kind, to, reason, run)
  for _, other in ipairs(job.R or {}) do
    local session = end_run(job, other[1])
    call('SADD', Q .. 'v:' .. session, other[1] .. ' ' .. job.id)
    call('PUBLISH', channel('s', session), '1')
  end
  stop_waiting(job)
  set_expires(job, nil)
  job.z, job.y, job.d, job.c = now, reason, nil, nil
  move(job, kind, to, run)
  free_key(job)
  tell(job.id, words[to])
end

local function bury(job, reason, run)
  finish(job, 'D', 'd', reason, run)
end

-- Whoever ran it is gone. Only a crash alone in a child counts against the job itself.
local function crash(job, run, suspect, blamed)
  end_run(job, run)
  if suspect or blamed then job.u = 1 end
  if blamed then job.x = (job.x or 0) + 1 end
  if job.c then finish(job, 'C', 'c', job.c, run)
  elseif (job.x or 0) >= (job.o.x or 3) then
    bury(job, 'poison: it crashed ' .. job.x .. ' times while running alone', run)
  elseif job.R then note('E', job.id, run)
  else move(job, (suspect or blamed) and 'X' or 'G', 'r', run)
  end
end

-- Without telling anybody: another job takes its place under the same id, or `forget` tells.
local function remove(job)
  stop_waiting(job)
  set_expires(job, nil)
  leave(job, job.s)
  count(job.s, -1)
  job.s = ''
  free_key(job)
  call('HDEL', Q .. 'job', job.id)
  call('HDEL', Q .. 'head', job.id)
  call('HDEL', Q .. 'res', job.id)
  call('HDEL', Q .. 'err', job.id)
  call('DEL', Q .. 'res:' .. job.id)
  dirty[job.id], jobs[job.id] = nil, nil
end

-- For records past their retention: no word in the feed, but for those who wait.
local function forget(job)
  remove(job)
  tell(job.id, 'not_found')
  if call('EXISTS', Q .. 'd:' .. job.id) == 0 then gone[#gone + 1] = job.id end
end

-- What is left to do in other slots: whether the outbox has word, (dependency, dependant) pairs to take apart, ids gone.
-- A job put again under its id may wait for the same job as before: that pair stays.
local function apart()
  local pairs_left = {}
  for i = 1, #forgotten, 2 do
    local waits, job = false, jobs[forgotten[i + 1]]
    for _, dependency in ipairs(job and job.w or {}) do waits = waits or dependency == forgotten[i] end
    if not waits then
      pairs_left[#pairs_left + 1], pairs_left[#pairs_left + 2] = forgotten[i], forgotten[i + 1]
    end
  end
  return pairs_left
end

local function aftermath()
  save_all()
  close()
  return { posted, apart(), gone }
end

-- What simple jobs that fell due leave to tell.
local function adopt(fallen)
  for _, event in ipairs(fallen.events) do events[#events + 1] = event end
  count('s', -fallen.moved)
  count('r', fallen.moved)
  for class, joined in pairs(fallen.ready) do woken.ready[class] = (woken.ready[class] or 0) + joined end
end

-- Jobs whose time has come, the longest overdue first: as `line_up` one by one, but each lane is joined once.
local function promote(limit)
  local fallen = next(jobs) == nil and fall_due(now, limit)
  if fallen == nil then return 0 end
  if fallen then
    adopt(fallen)
    return fallen.moved
  end
  local due = call('ZRANGEBYSCORE', Q .. 'due', '-inf', now, 'LIMIT', 0, limit)
  if #due == 0 then return 0 end
  local ids, lanes, names = {}, {}, {}
  for i, text in ipairs(due) do ids[i] = id_of(text) end
  for i, head in ipairs(fetch('HMGET', Q .. 'head', ids)) do
    if head and jobs[ids[i]] == nil then known(ids[i], head) end
  end
  local line = call('HINCRBY', Q .. 'n', 'line', #due) - #due
  for i, id in ipairs(ids) do
    local job = load(id)
    if job and place[job.s] == 'd' then
      if job.o.t and (job.r or 0) == 0 then set_expires(job, job.d + job.o.t) end
      count(job.s, -1)
      job.s, job.d, job.n = 'r', nil, line + i
      save(job)
      note('P', id)
      local lane = lane_of(job)
      if not lanes[lane] then
        lanes[lane] = {}
        names[#names + 1] = lane
      end
      local entries = lanes[lane]
      entries[#entries + 1], entries[#entries + 2], entries.last = job.n, id, job
    end
  end
  many('ZREM', Q .. 'due', due)
  for _, lane in ipairs(names) do
    local entries = lanes[lane]
    count('r', #entries / 2)
    line_add(entries.last.class, entries.last.group, lane, entries)
  end
  -- What the last to join declares counts.
  table.sort(names, function(one, other) return lanes[one].last.n < lanes[other].last.n end)
  for _, lane in ipairs(names) do declare(lanes[lane].last) end
  return #due
end
