-- take: hands out jobs of one queue to a session, each with a new run number.
-- uses: walk promote hand_over
--
-- `s` HASH session -> "epoch=<n> lease=<ms> expires=<ms>": the lease, copied to every queue the session takes from, so
--     that taking is fenced without a read elsewhere; `t` HASH session -> "request offset\nrun id\n...": its last reply
--
-- ARGV[3] session  [4] request  [5] number of jobs that earlier queues gave to this request  [6] want
-- ARGV[7..9] filter: version, tasks, priorities   [10] '' or the lease to enrol the session with
-- returns {'unknown'} | {'lost'} | {'old', last} | {'ok', jobs, aftermath}; per job: id, facts, body. Facts are '' for
--         the first run of a job that nothing happened to, else "run=<n> failures=<n>", and if there is any of them
--         " crashes=<n> suspect=<n> deadline=<ms> memos=<n> replayed=<run> class=<its class with the edited priority>";
--         of an undo run also a line with the JSON of its state and reason
local request = tonumber(ARGV[4])
local buried = 0
want, given, refs, heads = tonumber(ARGV[6]), {}, {}, {}

local function give(job, run, body)
  local n = #given
  given[n + 1], given[n + 2], given[n + 3] = job.id, taken_facts(job, run), body
end

local function start(job, body)
  begin_run(job, session)
  give(job, job.run, body)
  refs[#refs + 1] = job.run .. ' ' .. job.id
end

-- Starts a job, as text if it is simple. False if it is too late for it. `back`: it came back to its place.
local function start_one(free, id, body, number, back)
  local head = not jobs[id] and back and call('HGET', Q .. 'head', id)
  local simple = not jobs[id] and start_simple(id, head, body, number)
  if not simple and not head and not jobs[id] then
    head = call('HGET', Q .. 'head', id)
    simple = head and start_simple(id, head, body, number)
  end
  if simple then
    events[#events + 1] = 't' .. refs[#refs]
    slot('q', 1)
    slot('t:' .. string.match(free.class, '|(.-)|'), 1)
    if free.group ~= '' then slot('g:' .. free.group, 1) end
    if free.running_key ~= '' then slot('k:' .. free.running_key, 1) end
    return true
  end
  local job = jobs[id] or known(id, head, body)
  if why_too_late(job) then return false end
  job.line = tonumber(number)
  start(job, body)
  return true
end

-- Takes the first jobs of a lane, up to one that is too late. If that is the first, it is buried. Returns the number of
-- jobs taken.
local function take_lane(free, most)
  local stale = has_stale(free.lane)
  local ids, numbers, came_back = first_jobs(free.lane, stale and 1 or most + 1)
  ids[most + 1] = nil
  local bodies, took = fetch('HMGET', Q .. 'job', ids), 0
  while ids[took + 1] do
    local i = took + 1
    if not start_one(free, ids[i], bodies[i], numbers[i], came_back) then break end
    took = i
  end
  if took == 0 then
    local late = load(ids[1])
    bury(late, why_too_late(late))
    buried = buried + 1
    return 0
  end
  local following = stale and '' or numbers[took + 1]
  lane_shift(free.class, free.group, free.lane, took, came_back and came_back[took] or 0, following)
  -- The jobs it took itself need no other worker.
  woken.ready[free.class] = math.max(0, (woken.ready[free.class] or 0) - took)
  if not free.only or has_blocked(free.class) then
    local turn = call('HINCRBY', Q .. 'n', 'turn', 1)
    call('ZADD', Q .. 'r:' .. free.class, 'XX', turn, free.group)
    if has_blocked(free.class) then call('ZADD', Q .. 'rb:' .. free.class, 'XX', turn, free.group) end
  end
  return took
end

local function take_class(open)
  local said = declared('class', open.class)
  local room = math.min(want, class_room(open.task, said))
  local free = nil
  while room > 0 and buried < 100 do
    free = free_lane(open.class, free)
    if not free then return end
    local took = take_lane(free, free.sole and math.min(room, free.room) or 1)
    spend_start(open.task, free.rate_key, said, free.said, took)
    room, want = room - took, want - took
  end
end

-- Second runs go first, because they are late. A session that runs the job itself does not get them.
local function take_offers(filter)
  for _, id in ipairs(call('ZRANGE', Q .. 'offer', 0, -1)) do
    local job = load(id)
    if want > 0 and can_join(job, session, filter) then
      local room, by_class, by_key = may_start(job)
      if room then
        spend_start(job.task, job.rate_key, by_class, by_key, 1)
        withdraw_offer(job)
        start(job, call('HGET', Q .. 'job', id))
        want = want - 1
      end
    end
  end
end

-- The last reply again, less the runs that are not held any more. It confirms runs that were handed over.
local function repeat_reply(last)
  for number, id in string.gmatch(last, '(%d+) ([^\n]*)') do
    local run = tonumber(number)
    local job = load(id)
    for _, one in ipairs(job and job.runs or {}) do
      if one[1] == run and one[2] == session then give(job, number, call('HGET', Q .. 'job', id)) end
    end
    call('ZREM', Q .. 'handed', number .. ' ' .. id)
  end
  return { 'ok', given, { 0, {}, {} } }
end

-- Returns the reply to a request that is not a new one of a live session.
local function refuse()
  if ARGV[10] ~= '' then call('HSET', Q .. 's', session, ARGV[10]) end
  local lease = call('HGET', Q .. 's', session)
  if not lease then return { 'unknown' } end
  if now >= tonumber(string.match(lease, 'expires=(%d+)')) then return { 'lost' } end
  local number, gave = string.match(call('HGET', Q .. 't', session) or '0 0\n', '^(%d+) %d+\n(.*)$')
  local last = tonumber(number)
  if request < last then return { 'old', last } end
  if request == last then return repeat_reply(gave) end
end

local refused = refuse()
if refused then return refused end
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
if #heads > 0 then many('HSET', Q .. 'head', heads) end
keep_reply()
hand_over()
return { 'ok', given, aftermath() }
