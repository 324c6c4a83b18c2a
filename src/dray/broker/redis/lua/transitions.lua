-- transitions: every way a job changes its place, as in dray.broker.memory.store. The new place is written before the
-- old one is left, except where both are the same kind of place.
-- uses: due
--
-- `key`      HASH key -> "id\nuntil" (until '' means: until its job ends); `keyttl` ZSET key -> until
-- `h:SESSION` SET "run id": runs that a session holds here; `v:SESSION` SET: runs that became void
-- `asked`    HASH "run id" -> session: runs that are asked to stop, with "\n!" behind it: at once; `prog` HASH "run id"
--            -> progress
-- `offer`    ZSET id -> order of the offers
-- `ends`     SET ids that have watchers or dependants: `w:ID` SET watchers, `d:ID` ZSET jobs that depend on it
-- `m:WATCHER` ZSET id -> when it ended (kept for a day); `mailed` SET watchers with mail here
-- `out`      ZSET the outbox: "number\nstate\ndependant\ndependency\nhint", messages to other queues;
--            the hint orders the messages that one call caused in several queues
local done_ttl, dead_ttl = string.match(ARGV[2], '^(%d+),(-?%d+),')
local NEVER = 2 ^ 51
local DAY = 86400000
local GROUP_MAX = 1000 -- dray.job.GROUP_MAX
local RUNS_KEPT, RUN_ERROR_MAX = 20, 200 -- as in dray.job
local EXPIRED, OVERDUE = 'expired: it was not started within its ttl', 'deadline: it was not finished in time'
local place = { w = 'w', s = 'd', t = 'd', r = 'r', h = 'h', o = 'e', d = 'e', c = 'e' }
local posted, forgotten, gone, hint = 0, {}, {}, ''
local newcomer -- a job that is being put, and may depend on the job that it replaces

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
    lane_add(job.class, job.group, lane_of(job), { job.n, job.id })
  elseif kind == 'e' then call('ZADD', Q .. 'ended', string.format('%.0f', forget_at(job)), member(job))
  end
end

local function leave(job, state)
  local kind = place[state]
  if kind == 'w' then call('ZREM', Q .. 'waiting', job.id)
  elseif kind == 'd' then call('ZREM', Q .. 'due', member(job))
  elseif kind == 'r' then lane_remove(job.class, job.group, lane_of(job), { job.id })
  elseif kind == 'e' then call('ZREM', Q .. 'ended', member(job))
  end
end

-- `deadline` lists the jobs that do not run: a held run goes on past its deadline.
local function index_deadline(job)
  if not job.dl then return end
  if not_started[job.s] then call('ZADD', Q .. 'deadline', job.dl, member(job))
  else call('ZREM', Q .. 'deadline', member(job))
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
  index_deadline(job)
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

-- Makes a job ready, at the end of the line, or scheduled until its due time.
local function enqueue(job, kind, due, run)
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

-- A free slot may let a job start that a limit held back.
local function slot_freed(job)
  if job.group ~= '' then unblock_cause('g:' .. job.group) end
  if job.running_key ~= '' then unblock_cause('k:' .. job.running_key) end
  if job.o.m or job.running_key ~= '' or setting('limits') or setting('limits:' .. job.task) then woken.all = true end
end

-- "Type: message" of a packed error, cut to RUN_ERROR_MAX bytes at a character boundary.
local function short_error(problem)
  if not problem or problem == '' then return '' end
  local error = cmsgpack.unpack(problem)
  local text = error[1] .. ': ' .. error[2]
  if #text <= RUN_ERROR_MAX then return text end
  local cut = string.sub(text, 1, RUN_ERROR_MAX)
  local after = string.byte(text, RUN_ERROR_MAX + 1)
  if after >= 128 and after < 192 then cut = string.gsub(cut, '[\192-\255][\128-\191]*$', '') end
  return cut
end

local function add_past_run(job, run)
  local past = job.P or {}
  past[#past + 1] = run
  if #past > RUNS_KEPT then table.remove(past, 1) end
  job.P = past
end

-- Ends a run and frees its slot. Returns the session that held it.
local function end_run(job, run, how, problem)
  local left, session = {}, nil
  for _, one in ipairs(job.R or {}) do
    if one[1] ~= run then
      left[#left + 1] = one
    else
      session = one[2]
      if how ~= 'succeeded' or job.r > 1 then
        add_past_run(job, { run, session, one[3], now, how, short_error(problem) })
      end
    end
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

-- Tells watchers and dependants that a job ended. A watcher that listens is sent "id\n", and after a plain success the
-- whole job (see settle_plain); a watcher that does not listen finds mail when it comes.
local function announce_end(id, ended)
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

-- The caller removes it from its dependencies, which may be in other slots.
local function stop_waiting(job)
  for _, dependency in ipairs(job.w or {}) do
    forgotten[#forgotten + 1] = dependency
    forgotten[#forgotten + 1] = job.id
  end
  job.w = nil
end

-- Finishes a job: other runs become void, the key is freed or kept for `once`, watchers and dependants are notified.
local function finish(job, kind, to, reason, run)
  for _, other in ipairs(job.R or {}) do
    local session = end_run(job, other[1], 'overtaken')
    call('SADD', Q .. 'v:' .. session, other[1] .. ' ' .. job.id)
    call('PUBLISH', channel('s', session), '1')
  end
  stop_waiting(job)
  set_expires(job, nil)
  job.z, job.y, job.d, job.c = now, reason, nil, nil
  move(job, kind, to, run)
  free_key(job)
  announce_end(job.id, words[to])
end

local function bury(job, reason, run)
  finish(job, 'D', 'd', reason, run)
end

-- The reason why a job that does not run must die now, or nil.
local function why_too_late(job)
  if job.e and now >= job.e then return EXPIRED end
  return is_overdue(job) and OVERDUE or nil
end

-- Back to its old number in line, unless its deadline has passed.
local function back_in_line(job, kind, run)
  if is_overdue(job) then bury(job, OVERDUE, run) else move(job, kind, 'r', run) end
end

-- The size of the group in which a suspect runs next, after a process died that ran `together` jobs (0: a worker).
local function group_after(before, together)
  local half = together > 0 and math.ceil(together / 2) or GROUP_MAX
  return math.min((before or 0) > 0 and before or GROUP_MAX, half)
end

-- A run ended because its worker (`together` 0) or a child with so many jobs died. Alone, that counts as a crash.
local function crash(job, run, suspect, together, problem)
  end_run(job, run, together == 1 and 'crashed' or suspect and 'lost' or 'given_back', problem)
  if suspect then job.u = group_after(job.u, together) end
  if together == 1 then job.x = (job.x or 0) + 1 end
  if job.c then finish(job, 'C', 'c', job.c, run)
  elseif (job.x or 0) >= (job.o.x or 3) then
    bury(job, 'poison: it crashed ' .. job.x .. ' times while running alone', run)
  elseif job.R then note('E', job.id, run)
  else back_in_line(job, suspect and 'X' or 'G', run)
  end
end

-- Tells neither watchers nor dependants: another job takes the id, or `forget` tells them.
local function remove(job)
  stop_waiting(job)
  set_expires(job, nil)
  if job.dl then call('ZREM', Q .. 'deadline', member(job)) end
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

-- For records past their retention: no event in the feed, but watchers and dependants are notified.
local function forget(job)
  remove(job)
  announce_end(job.id, 'not_found')
  if call('EXISTS', Q .. 'd:' .. job.id) == 0 then gone[#gone + 1] = job.id end
end

-- Pairs (dependency, dependant) to remove in other slots. A job put again under its id may wait for the same job as
-- before: that pair stays.
local function pairs_to_remove()
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

-- The follow-up work in other slots: 1 if the outbox has messages, pairs to remove, ids that are gone.
local function aftermath()
  save_all()
  close()
  return { posted, pairs_to_remove(), gone }
end

-- Adds the events and counts of simple jobs that fell due.
local function add_fallen(fallen)
  for _, event in ipairs(fallen.events) do events[#events + 1] = event end
  count('s', -fallen.moved)
  count('r', fallen.moved)
  for class, joined in pairs(fallen.ready) do woken.ready[class] = (woken.ready[class] or 0) + joined end
end

-- Makes due jobs ready, the longest overdue first: as `enqueue` one by one, but each lane is joined once.
local function promote(limit)
  local fallen = next(jobs) == nil and fall_due(now, limit)
  if fallen == nil then return 0 end
  if fallen then
    add_fallen(fallen)
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
    lane_add(entries.last.class, entries.last.group, lane, entries)
  end
  -- The limits that the last job to join declares count.
  table.sort(names, function(one, other) return lanes[one].last.n < lanes[other].last.n end)
  for _, lane in ipairs(names) do declare(lanes[lane].last) end
  return #due
end
