-- take: hands out jobs of one queue to a session, each with a new run number.
-- uses: base job lanes transitions
--
-- `s` HASH session -> {e epoch, l lease, x expires}: the lease, copied to every queue the session takes from, so that
--     taking is fenced without a read elsewhere; `t` HASH session -> "request offset\nrun id\n...": its last reply
--
-- ARGV[3] session  [4] request  [5] number of jobs that earlier queues gave to this request  [6] want
-- ARGV[7..9] filter: version, tasks, priorities   [10] '' or "epoch,lease,expires" to enrol the session with
-- returns {'unknown'} | {'lost'} | {'old', last} | {'ok', jobs, aftermath}; per job: id, run, failures, crashes,
--         suspect, class if its priority was edited or '', deadline (a moment) or '', body; {'fresh', jobs, aftermath}
--         if all are plain and in their first run; per job: id, body
local session, request, want = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[6])
local given, fresh, refs, texts, buried = {}, {}, {}, {}, 0

-- Jobs in their first run are returned as pairs; once another job is among them, all are returned in full, in order.
local function in_full()
  for i = 1, #fresh, 2 do
    local n = #given
    given[n + 1], given[n + 2], given[n + 3], given[n + 4] = fresh[i], '1', 0, 0
    given[n + 5], given[n + 6], given[n + 7], given[n + 8] = 0, '', '', fresh[i + 1]
  end
  fresh = {}
end

local function give(job, run, body)
  local n = #given
  given[n + 1], given[n + 2], given[n + 3], given[n + 4] = job.id, run, job.f or 0, job.x or 0
  given[n + 5], given[n + 6], given[n + 7], given[n + 8] = job.u or 0, job.p or '', job.dl or '', body
end

local function start(job, body)
  job.r = (job.r or 0) + 1
  job.b = now
  if job.e then set_expires(job, nil) end
  job.R = job.R or {}
  job.R[#job.R + 1] = { job.r, session, now }
  use_slots(job, 1)
  index_deadline(job)
  save(job)
  in_full()
  give(job, tostring(job.r), body)
  local ref = job.r .. ' ' .. job.id
  refs[#refs + 1], events[#events + 1] = ref, 't' .. ref
end

-- Takes the first jobs of a lane. Expired and overdue ones are buried.
local function take_lane(free, most, only_group)
  local ids = call('ZRANGE', Q .. 'l:' .. free.lane, 0, most - 1, 'WITHSCORES')
  local names, begun, plain = {}, {}, 0
  for i = 1, #ids, 2 do names[#names + 1] = ids[i] end
  local heads, bodies = fetch('HMGET', Q .. 'head', names), fetch('HMGET', Q .. 'job', names)
  for i, id in ipairs(names) do
    local a = not heads[i] and not jobs[id] and tail(bodies[i])
    if a and is_simple(a) then
      -- A simple job in its first run is not unpacked.
      texts[#texts + 1], texts[#texts + 2] = id, 'h1 ' .. ids[2 * i] .. ' ' .. at .. ' ' .. session .. '\n' .. a
      local n, ref = #fresh, '1 ' .. id
      fresh[n + 1], fresh[n + 2], refs[#refs + 1] = id, bodies[i], ref
      events[#events + 1] = 't' .. ref
      begun[#begun + 1] = id
      plain = plain + 1
    else
      local job = jobs[id] or known(id, heads[i], bodies[i])
      local reason = why_too_late(job)
      if reason then
        bury(job, reason)
        buried = buried + 1
        if buried == 100 then break end
      else
        job.n = tonumber(ids[2 * i])
        job.s = 'h'
        start(job, bodies[i])
        begun[#begun + 1] = id
      end
    end
  end
  if plain > 0 then
    slot('q', plain)
    slot('t:' .. string.match(free.class, '^%d+|(.-)|'), plain)
  end
  if #begun > 0 then
    lane_remove(free.class, free.group, free.lane, begun, #begun == #names and #begun)
    -- The jobs it took itself need no other worker.
    woken.ready[free.class] = math.max(0, (woken.ready[free.class] or 0) - #begun)
    count('r', -#begun)
    count('h', #begun)
    if not only_group then
      local turn = call('HINCRBY', Q .. 'n', 'turn', 1)
      call('ZADD', Q .. 'r:' .. free.class, 'XX', turn, free.group)
      call('ZADD', Q .. 'rb:' .. free.class, 'XX', turn, free.group)
    end
  end
  return #begun
end

local function take_class(open)
  local said = declared('class', open.class)
  local room = math.min(want, class_room(open.task, said))
  while room > 0 and buried < 100 do
    local free = free_lane(open.class)
    if not free then return end
    local only_group, sole = alone(free)
    local took = take_lane(free, sole and math.min(room, free.room) or 1, only_group)
    spend_start(open.task, free.rate_key, said, free.said, took)
    room, want = room - took, want - took
  end
end

-- Second runs go first, because they are late. A session that runs the job itself does not get them.
local function take_offers(filter)
  for _, id in ipairs(call('ZRANGE', Q .. 'offer', 0, -1)) do
    local job = load(id)
    local mine = false
    for _, run in ipairs(job.R or {}) do mine = mine or run[2] == session end
    if want > 0 and not mine and can_run(filter, job.class) and not paused(job.task) and not is_overdue(job) then
      local by_key = { r = job.rate_key ~= '' and job.o.r or nil, m = job.running_key ~= '' and job.o.m or nil }
      local said = { r = job.rate_key == '' and job.o.r or nil, m = job.running_key == '' and job.o.m or nil }
      local room = lane_room(job.group, job.rate_key, job.running_key, by_key)
      if room > 0 and class_room(job.task, said) > 0 then
        spend_start(job.task, job.rate_key, said, by_key, 1)
        withdraw_offer(job)
        start(job, call('HGET', Q .. 'job', id))
        want = want - 1
      end
    end
  end
end

-- The last reply again, less the runs that are not held any more.
local function repeat_reply(last)
  for number, id in string.gmatch(last, '(%d+) ([^\n]*)') do
    local run = tonumber(number)
    local job = load(id)
    local held = false
    for _, one in ipairs(job and job.R or {}) do held = held or (one[1] == run and one[2] == session) end
    if held then give(job, number, call('HGET', Q .. 'job', id)) end
  end
  return { 'ok', given, { 0, {}, {} } }
end

if ARGV[10] ~= '' then
  local epoch, lease, expires = string.match(ARGV[10], '^(%d+),(%d+),(%d+)$')
  call('HSET', Q .. 's', session,
    cmsgpack.pack({ e = tonumber(epoch), l = tonumber(lease), x = tonumber(expires) }))
end
local known_session = call('HGET', Q .. 's', session)
if not known_session then return { 'unknown' } end
if now >= cmsgpack.unpack(known_session).x then return { 'lost' } end
local stored = call('HGET', Q .. 't', session)
local number, gave = string.match(stored or '0 0\n', '^(%d+) %d+\n(.*)$')
local last = tonumber(number)
if request < last then return { 'old', last } end
if request == last then return repeat_reply(gave) end

if early then add_fallen(early) end
promote(1000 - (early and early.moved or 0))
unblock_due()
local filter = read_filter(7)
take_offers(filter)
if want > 0 then
  for open in open_classes(filter) do
    take_class(open)
    if want == 0 or buried >= 100 then break end
  end
end
if #refs > 0 then many('SADD', Q .. 'h:' .. session, refs) end
if #texts > 0 then many('HSET', Q .. 'head', texts) end
call('HSET', Q .. 't', session, ARGV[4] .. ' ' .. ARGV[5] .. '\n' .. table.concat(refs, '\n'))
if #given == 0 then return { 'fresh', fresh, aftermath() } end
in_full()
return { 'ok', given, aftermath() }
