-- repair: checks the next stretch of everything a queue keeps, and repairs damage that no script of dray can cause.
-- uses: base job lanes transitions
--
-- `n` has a field `look` while rounds are under way: JSON, how far each has come.
--
-- ARGV[3] number of entries of each kind to check
-- returns {kinds of repair and their numbers: kind, count, ..., ids that clients made up, edges: dependency, dependant,
--          ..., aftermath}
local most, stored_look = tonumber(ARGV[3]), call('HGET', Q .. 'n', 'look')
local look, fixed, repaired = cjson.decode(stored_look or '{}'), {}, false
local queue = string.match(Q, '{.-:(.-)}')
local LARGE, RECOUNT = 2000000, 5000

local function note_repair(kind)
  fixed[kind] = (fixed[kind] or 0) + 1
  repaired = true
end

-- The next stretch of a hash or set; only the names, if asked for and supported by the server.
local function stretch(command, key, count, names)
  local reply = names and redis.pcall(command, Q .. key, look[key] or '0', 'COUNT', count, 'NOVALUES')
  local bare = reply and not reply.err
  if not bare then reply = call(command, Q .. key, look[key] or '0', 'COUNT', count) end
  look[key] = reply[1] ~= '0' and reply[1] or nil
  if bare or not names then return reply[2] end
  local found = {}
  for i = 1, #reply[2], 2 do found[#found + 1] = reply[2][i] end
  return found
end

-- Loads jobs together. Returns the number of bytes read.
local function preload(ids)
  local unknown, bodiless, bytes = {}, {}, 0
  for _, id in ipairs(ids) do
    if jobs[id] == nil then unknown[#unknown + 1] = id end
  end
  if #unknown == 0 then return 0 end
  for i, head in ipairs(fetch('HMGET', Q .. 'head', unknown)) do
    if head then known(unknown[i], head) else bodiless[#bodiless + 1] = unknown[i] end
  end
  if #bodiless == 0 then return 0 end
  for i, body in ipairs(fetch('HMGET', Q .. 'job', bodiless)) do
    if body then known(bodiless[i], nil, body) else jobs[bodiless[i]] = false end
    bytes = bytes + (body and #body or 0)
  end
  return bytes
end

-- The lanes in which ready jobs stand, read together.
local in_lane = {}
local function look_up_lanes(ids)
  local lanes = {}
  for _, id in ipairs(ids) do
    local job = load(id)
    if job and job.s == 'r' then
      local lane = lane_of(job)
      lanes[lane] = lanes[lane] or {}
      table.insert(lanes[lane], id)
    end
  end
  for lane, names in pairs(lanes) do
    for i, number in ipairs(fetch('ZMSCORE', Q .. 'l:' .. lane, names)) do in_lane[names[i]] = number and lane end
  end
end

local function number_of(job)
  if not job.n then
    job.n = call('HINCRBY', Q .. 'n', 'line', 1)
    save(job)
  end
end

-- True if the lane is in its group, the group in its ring, and the class in the index.
local seen = {}
local function lane_is_listed(job)
  local lane = lane_of(job)
  if seen[lane] == nil then
    local kind = is_blocked(lane) and 'b' or ''
    local head = call('ZRANGE', Q .. 'l:' .. lane, 0, 0, 'WITHSCORES')[2]
    seen[lane] = call('ZSCORE', Q .. 'g' .. kind .. ':' .. job.class .. '\n' .. job.group, lane) == head
      and call('ZSCORE', Q .. 'r' .. kind .. ':' .. job.class, job.group) ~= false
      and call('ZSCORE', Q .. 'index', job.class) ~= false
  end
  return seen[lane]
end

-- Lists a lane as if its first job had just joined: no limit holds it back until `take` meets one.
local function list_lane(lane)
  local class, group = lane_parts(lane)
  local name, head = class .. '\n' .. group, call('ZRANGE', Q .. 'l:' .. lane, 0, 0, 'WITHSCORES')[2]
  note_repair('lane')
  seen[lane] = true
  call('ZREM', Q .. 'blocked', lane)
  call('ZREM', Q .. 'gb:' .. name, lane)
  call('ZADD', Q .. 'g:' .. name, head, lane)
  if not call('ZSCORE', Q .. 'r:' .. class, group) then
    call('ZADD', Q .. 'r:' .. class, call('HINCRBY', Q .. 'n', 'turn', 1), group)
  end
  if call('EXISTS', Q .. 'gb:' .. name) == 0 then call('ZREM', Q .. 'rb:' .. class, group) end
  index_class(class)
  woken.all = true
end

local function repair_place(job)
  local kind = place[job.s]
  local there = kind == 'h'
  if kind == 'w' then there = call('ZSCORE', Q .. 'waiting', job.id)
  elseif kind == 'd' then there = call('ZSCORE', Q .. 'due', member(job))
  elseif kind == 'e' then there = call('ZSCORE', Q .. 'ended', member(job))
  elseif kind == 'r' then
    there = in_lane[job.id] == lane_of(job) or call('ZSCORE', Q .. 'l:' .. lane_of(job), job.id)
  end
  if not there then
    note_repair('place')
    if kind == 'r' then number_of(job) end
    if kind == 'd' and not job.d then job.d = now end
    if kind == 'e' and not job.z then job.z = now end
    save(job)
    enter(job)
  end
  if kind == 'r' and not lane_is_listed(job) then list_lane(lane_of(job)) end
end

local function holds(session, ref)
  return call('HEXISTS', Q .. 's', session) == 1, call('SISMEMBER', Q .. 'h:' .. session, ref) == 1
end

-- The session that holds a run must know it. A running job without a live session becomes ready, or cancelled if asked.
local function repair_runs(job)
  for _, run in ipairs(job.R or {}) do
    local ref = run[1] .. ' ' .. job.id
    local alive, known_there = holds(run[2], ref)
    if job.s ~= 'h' then
      note_repair('run')
      call('SREM', Q .. 'h:' .. run[2], ref)
    elseif not alive then
      note_repair('run')
      number_of(job)
      return crash(job, run[1], true, 0)
    elseif not known_there then
      note_repair('run')
      call('SADD', Q .. 'h:' .. run[2], ref)
    end
  end
  if job.R and job.s ~= 'h' then
    job.R = nil
    save(job)
  elseif job.s == 'h' and not job.R then
    note_repair('run')
    job.u = group_after(job.u, 0)
    number_of(job)
    if job.c then finish(job, 'C', 'c', job.c) else back_in_line(job, 'X') end
  end
end

local function repair_waiting(job)
  if job.s == 'w' and not job.w then
    note_repair('dependency')
    enqueue(job, 'R', job.o.d)
  elseif job.w and job.s ~= 'w' then
    note_repair('dependency')
    stop_waiting(job)
    save(job)
  end
end

local function repair_deadline(job)
  if (job.dl ~= nil) ~= (job.o.dl ~= nil) then
    note_repair('record')
    job.dl = job.o.dl and math.max(now, job.d or job.o.d or 0) + job.o.dl
    save(job)
    index_deadline(job)
  elseif job.dl and not_started[job.s] and tonumber(call('ZSCORE', Q .. 'deadline', member(job)) or -1) ~= job.dl then
    note_repair('place')
    index_deadline(job)
  end
end

local function repair_offer(job)
  if not job.of then return end
  if job.s ~= 'h' then
    note_repair('offer')
    withdraw_offer(job)
  elseif not call('ZSCORE', Q .. 'offer', job.id) then
    note_repair('offer')
    call('ZADD', Q .. 'offer', now, job.id)
  end
end

local function repair_key(job)
  if not job.o.k or job.o.kt or finished[job.s] then return end
  local id = key_holder(job.o.k)
  if id == job.id then return end
  local other = id and load(id)
  if other and other.o.k == job.o.k and not finished[other.s] then return end
  note_repair('key')
  take_key(job.o.k, job.id)
end

local function repair_job(job)
  if not words[job.s] then
    note_repair('place')
    job.s = job.z and 'd' or 'r'
    save(job)
  end
  repair_runs(job)
  repair_waiting(job)
  repair_deadline(job)
  repair_place(job)
  repair_offer(job)
  repair_key(job)
  if job.e and not call('ZSCORE', Q .. 'ttl', member(job)) then
    note_repair('place')
    call('ZADD', Q .. 'ttl', job.e, member(job))
  end
end

-- Plain jobs have no head, so their bodies are read. If these are large, fewer are read next time.
local made_up, whole, tally = {}, look.job == nil, {}
local function check_jobs()
  local step = look.step or most
  local ids = stretch('HSCAN', 'job', step, true)
  whole = whole and look.job == nil
  local bytes = preload(ids)
  look_up_lanes(ids)
  for _, id in ipairs(ids) do
    local job = load(id)
    repair_job(job)
    tally[job.s] = (tally[job.s] or 0) + 1
    if #id ~= #queue + 33 or string.sub(id, 1, #queue + 1) ~= queue .. ':' then made_up[#made_up + 1] = id end
  end
  look.step = bytes > LARGE and math.max(10, math.floor(step * LARGE / bytes)) or nil
end

-- Removes entries without a job, or of a job that stands elsewhere.
local function check_place(key, belongs, named)
  local first = look[key] or 0
  local entries = call('ZRANGE', Q .. key, first, first + most - 1)
  look[key] = #entries == most and first + most or nil
  local ids = {}
  for i, text in ipairs(entries) do ids[i] = named and text or id_of(text) end
  preload(ids)
  for i, text in ipairs(entries) do
    local job = load(ids[i])
    if not job or not belongs(job) or (not named and member(job) ~= text) then
      note_repair(key == 'offer' and 'offer' or 'place')
      call('ZREM', Q .. key, text)
    end
  end
end

local function check_lane(class, group, lane, kind, score)
  local head = call('ZRANGE', Q .. 'l:' .. lane, 0, 0, 'WITHSCORES')[2]
  if not head then
    note_repair('lane')
    call('ZREM', Q .. 'g' .. kind .. ':' .. class .. '\n' .. group, lane)
    call('ZREM', Q .. 'blocked', lane)
    call('HDEL', Q .. 'lane', lane)
  elseif head ~= score or (call('ZSCORE', Q .. 'blocked', lane) ~= false) ~= (kind == 'b') then
    list_lane(lane)
  end
end

-- A class stands in `index` where its next job says.
local function check_rank(class)
  local before = call('ZSCORE', Q .. 'index', class)
  index_class(class)
  if call('ZSCORE', Q .. 'index', class) ~= before then note_repair('lane') end
end

-- Checks lanes from class to group to lane to job. Cursor: ranks of {class, '' or 'b', group, lane, job}.
local function check_line()
  local at, left = look.line or { 0, '', 0, 0, 0 }, most
  while at and left > 0 do
    local class, kind = call('ZRANGE', Q .. 'index', at[1], at[1])[1], at[2]
    if not class then
      at = nil
      break
    end
    left = left - 1
    if at[2] == '' and at[3] + at[4] + at[5] == 0 then check_rank(class) end
    local ring = Q .. 'r' .. kind .. ':' .. class
    local group = call('ZRANGE', ring, at[3], at[3])[1]
    local lanes = Q .. 'g' .. kind .. ':' .. class .. '\n' .. (group or '')
    local found = group and call('ZRANGE', lanes, at[4], at[4], 'WITHSCORES') or {}
    if not group and kind == '' then
      at = { at[1], 'b', 0, 0, 0 }
    elseif not group then
      at = { at[1] + 1, '', 0, 0, 0 }
      if call('EXISTS', Q .. 'r:' .. class) == 0 and call('EXISTS', ring) == 0 then
        note_repair('lane')
        call('ZREM', Q .. 'index', class)
        call('HDEL', Q .. 'class', class)
      end
    elseif not found[1] then
      at = { at[1], kind, at[3] + 1, 0, 0 }
      if call('EXISTS', lanes) == 0 then
        note_repair('lane')
        call('ZREM', ring, group)
      end
    else
      local lane, asked = found[1], left
      if at[5] == 0 then check_lane(class, group, lane, kind, found[2]) end
      local ids = call('ZRANGE', Q .. 'l:' .. lane, at[5], at[5] + asked - 1)
      left = left - #ids
      at = #ids < asked and { at[1], kind, at[3], at[4] + 1, 0 } or { at[1], kind, at[3], at[4], at[5] + #ids }
      preload(ids)
      for _, id in ipairs(ids) do
        local job = load(id)
        if not job or job.s ~= 'r' or lane_of(job) ~= lane then
          note_repair('place')
          lane_remove(class, group, lane, { id })
        end
      end
    end
  end
  look.line = at
end

local function check_keys()
  local keys = stretch('HSCAN', 'key', most)
  for i = 1, #keys, 2 do
    local id, ends = string.match(keys[i + 1], '^(.*)\n(%d*)$')
    local job = id and load(id)
    if not job or job.o.k ~= keys[i] or (finished[job.s] and ends == '') then
      note_repair('key')
      call('HDEL', Q .. 'key', keys[i])
      call('ZREM', Q .. 'keyttl', keys[i])
    end
  end
end

-- A head without its body cannot run: the job dies and is forgotten.
local function check_parts()
  local heads = stretch('HSCAN', 'head', most / 4)
  for i = 1, #heads, 2 do
    if call('HEXISTS', Q .. 'job', heads[i]) == 0 then
      local job = load(heads[i])
      note_repair('record')
      repair_job(job)
      if not finished[job.s] then bury(job, 'undecodable: its body is gone') end
      forget(job)
    end
  end
  for _, key in ipairs({ 'res', 'err' }) do
    for _, id in ipairs(stretch('HSCAN', key, most / 4, true)) do
      if call('HEXISTS', Q .. 'job', id) == 0 then
        note_repair('record')
        call('HDEL', Q .. key, id)
      end
    end
  end
end

-- A lane in `blocked` must be among the blocked lanes of its group, else every script that touches it fails.
local function check_blocked()
  local first = look.blocked or 0
  local lanes = call('ZRANGE', Q .. 'blocked', first, first + most - 1)
  look.blocked = #lanes == most and first + most or nil
  for _, lane in ipairs(lanes) do
    local class, group = lane_parts(lane)
    local name = (class or '') .. '\n' .. (group or '')
    local listed = class and call('ZSCORE', Q .. 'gb:' .. name, lane)
    if not listed or not call('ZSCORE', Q .. 'rb:' .. class, group) then
      note_repair('lane')
      call('ZREM', Q .. 'blocked', lane)
      call('ZREM', Q .. 'gb:' .. name, lane)
    end
  end
end

local edges = {}
local function check_ends()
  for _, id in ipairs(stretch('SSCAN', 'ends', 20)) do
    local waiting = call('ZRANGE', Q .. 'd:' .. id, 0, 19)
    for _, dependant in ipairs(waiting) do
      edges[#edges + 1], edges[#edges + 2] = id, dependant
    end
    if #waiting == 0 and call('EXISTS', Q .. 'w:' .. id) == 0 then
      note_repair('record')
      call('SREM', Q .. 'ends', id)
    end
  end
end

-- Corrects a hash of numbers.
local function correct(key, truth, kind)
  local stored = call('HGETALL', Q .. key)
  for i = 1, #stored, 2 do
    local right = truth[stored[i]] or 0
    if tonumber(stored[i + 1]) ~= right then
      note_repair(kind)
      if right == 0 then call('HDEL', Q .. key, stored[i]) else call('HSET', Q .. key, stored[i], right) end
    end
    truth[stored[i]] = nil
  end
  for name, number in pairs(truth) do
    note_repair(kind)
    call('HSET', Q .. key, name, number)
  end
end

local function numbers(key)
  local stored, found = call('HGETALL', Q .. key), {}
  for i = 1, #stored, 2 do found[stored[i]] = tonumber(stored[i + 1]) end
  return function(name) return found[name] or 0 end, found
end

-- The slots in use are those of the runs held. They are counted once a round through the jobs, and when sums differ,
-- unless there are very many.
local function check_slots()
  local sessions, held = call('HKEYS', Q .. 's'), 0
  for _, session in ipairs(sessions) do held = held + call('SCARD', Q .. 'h:' .. session) end
  local running, all = numbers('running')
  local by_task = 0
  for name, number in pairs(all) do
    if string.sub(name, 1, 2) == 't:' then by_task = by_task + number end
  end
  if held > RECOUNT or (look.job and running('q') == held and by_task == held) then return end
  local truth = {}
  local function add(what) truth[what] = (truth[what] or 0) + 1 end
  for _, session in ipairs(sessions) do
    for _, ref in ipairs(call('SMEMBERS', Q .. 'h:' .. session)) do
      local number, id = string.match(ref, '^(%d+) (.*)$')
      local job, valid = id and load(id), false
      for _, run in ipairs(job and job.R or {}) do
        valid = valid or (run[1] == tonumber(number) and run[2] == session)
      end
      if valid then
        add('q')
        add('t:' .. job.task)
        if job.group ~= '' then add('g:' .. job.group) end
        if job.running_key ~= '' then add('k:' .. job.running_key) end
      else
        note_repair('run')
        call('SREM', Q .. 'h:' .. session, ref)
      end
    end
  end
  correct('running', truth, 'slot')
  if fixed.slot then
    woken.all = true
    for what in pairs(all) do unblock_cause(what) end
  end
end

-- Jobs per state: exact if this script saw all jobs, else by the sizes of their places.
local function check_counts()
  local total, of, all = call('HLEN', Q .. 'job'), numbers('counts')
  local waiting, due, ended = call('ZCARD', Q .. 'waiting'), call('ZCARD', Q .. 'due'), call('ZCARD', Q .. 'ended')
  local sum, seen_all = 0, 0
  for _, number in pairs(tally) do seen_all = seen_all + number end
  if whole and seen_all == total then return correct('counts', tally, 'count') end
  for _, number in pairs(all) do sum = sum + number end
  if of('w') == waiting and of('s') + of('t') == due and of('o') + of('d') + of('c') == ended and sum == total then
    return
  end
  if total <= RECOUNT then
    local exact = {}
    for _, id in ipairs(call('HKEYS', Q .. 'job')) do
      local state = load(id).s
      exact[state] = (exact[state] or 0) + 1
    end
    return correct('counts', exact, 'count')
  end
  local right = { w = waiting, t = of('t'), h = of('h'), d = of('d'), c = of('c') }
  right.s, right.o = math.max(0, due - right.t), math.max(0, ended - right.d - right.c)
  right.r = math.max(0, total - waiting - due - ended - right.h)
  for state, number in pairs(right) do
    if number == 0 then right[state] = nil end
  end
  correct('counts', right, 'count')
end

check_blocked()
check_jobs()
check_place('waiting', function(job) return job.s == 'w' end, true)
check_place('due', function(job) return place[job.s] == 'd' end)
check_place('ended', function(job) return place[job.s] == 'e' end)
check_place('ttl', function(job) return job.e ~= nil end)
check_place('deadline', function(job) return job.dl and not_started[job.s] end)
check_place('offer', function(job) return job.s == 'h' and job.of end, true)
check_line()
check_keys()
check_parts()
check_ends()
-- A repair changes the numbers when this script closes, so they are checked next time.
if not repaired then
  check_slots()
  check_counts()
end
local kept_look = next(look) and cjson.encode(look) or nil
if kept_look ~= (stored_look or nil) then
  if kept_look then call('HSET', Q .. 'n', 'look', kept_look) else call('HDEL', Q .. 'n', 'look') end
end
local repairs = {}
for kind, number in pairs(fixed) do
  repairs[#repairs + 1], repairs[#repairs + 2] = kind, number
end
return { repairs, made_up, edges, aftermath() }
