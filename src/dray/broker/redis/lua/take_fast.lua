-- take_fast: the fast path of take, for a queue in which nothing is held back, offered or paused, from lanes without
-- group and keys, of plain and simple jobs that nothing happened to but failed runs. Limits of the queue and of tasks
-- are counted as in take. Otherwise the full script goes on; everything is read before anything is written, so it finds
-- nothing changed, except that simple jobs that were due are ready: `early` lists them.
-- uses: prelude job_text lane_front due_fast take_limits close
--
-- Takes and returns the same as take.

-- `early`: simple jobs that this call made ready. `spent`, `room_of`, `count_starts`: see
-- take_limits. Per class `parts` has what is taken.
local early, add_early, spent, room_of, count_starts
local session, want = ARGV[3], tonumber(ARGV[6])
local given, refs, heads, parts = {}, {}, {}, {}

-- False if the session is unknown or lapsed here, or the request is not a new one.
local function may_take()
  if ARGV[10] ~= '' or want > 1000 then return false end
  local lease, last = call('HGET', Q .. 's', session), call('HGET', Q .. 't', session)
  if not lease or (last and tonumber(string.match(last, '^%d+')) >= tonumber(ARGV[4])) then return false end
  return now < tonumber(string.match(lease, 'expires=(%d+)'))
end

-- Reads what an operator set, and makes due jobs ready. False if the full script is needed.
local function read_special()
  if call('EXISTS', Q .. 'blocked', Q .. 'offer', Q .. 'stale') > 0 then return false end
  local stored = call('HGETALL', Q .. 'set')
  local set = {}
  for i = 1, #stored, 2 do
    if string.sub(stored[i], 1, 5) == 'pause' then return false end
    set[stored[i]] = cjson.decode(stored[i + 1])
  end
  local fall_due
  fall_due, add_early = due_fast()
  local fallen = fall_due(1000)
  if fallen == false then return false end
  early, spent = fallen, {}
  room_of, count_starts = take_limits(set, spent)
  return true
end

-- The head of a job in its next run, the run, and facts for the reply; nil if the job is not simple.
local STARTED = ' started=' .. at .. ' session=' .. session .. '\n'
local function next_head(head, number)
  local run, line, failures, header =
    string.match(head, '^ready run=(%d+) line=(%d+) failures=(%d+) started=%d+\n(.*)$')
  if line ~= number or string.byte(header) == 102 then return nil end
  local rest = string.find(header, '\n', 1, true)
  if rest and not only_past(string.sub(header, rest)) then return nil end
  run = run + 1
  return 'running run=' .. run .. ' line=' .. line .. ' failures=' .. failures .. STARTED .. header, run,
    run == 1 and failures == '0' and '' or 'run=' .. run .. ' failures=' .. failures
end

-- The same for a job that is ready for the first time: it stands under the number that its body begins with. If it has
-- a head, that tells no more.
local function first_head(body, number)
  local header = #number + 2
  local shape = string.byte(body, header)
  if not shape or shape == 102 or string.sub(body, 1, header - 1) ~= number .. ' ' then return nil end
  return 'running run=1 line=' .. number .. ' failures=0' .. STARTED
    .. string.sub(body, header, string.find(body, '\n', header, true) - 1), 1, ''
end

-- Notes the start of a job. False if it is not simple.
local function start_simple(id, head, body, number)
  if not body then return false end
  local text, run, facts
  if head then text, run, facts = next_head(head, number) else text, run, facts = first_head(body, number) end
  if not text then return false end
  local size, last = #given, #heads
  given[size + 1], given[size + 2], given[size + 3] = id, facts, body
  heads[last + 1], heads[last + 2] = id, text
  refs[#refs + 1] = run .. ' ' .. id
  return true
end

-- Reads the first jobs of a lane; false if one is not simple.
local function read_lane(part)
  local most = room_of and room_of(part, want) or want
  if most == 0 then return true end
  local ids, numbers, came_back = first_jobs(part.lane, most + 1)
  if #ids == 0 then return false end
  part.head = numbers[most + 1]
  ids[most + 1] = nil
  local bodies, old = call('HMGET', Q .. 'job', unpack(ids)), came_back and call('HMGET', Q .. 'head', unpack(ids))
  for i, id in ipairs(ids) do
    local simple = start_simple(id, old and old[i], bodies[i], numbers[i])
    if not simple and not old then
      old = call('HMGET', Q .. 'head', unpack(ids))
      simple = start_simple(id, old[i], bodies[i], numbers[i])
    end
    if not simple then return false end
  end
  part.took, part.came_back = #ids, came_back and came_back[#ids] or 0
  want = want - #ids
  if count_starts then count_starts(part) end
  parts[#parts + 1] = part
  return true
end

-- Reads the jobs to hand out. The classes stand in the order of taking; with many tasks, a call meets only those whose
-- jobs it hands out. False if the full script is needed.
local function read_classes(filter)
  local from, step = 0, 16
  while want > 0 do
    local classes = call('ZRANGE', Q .. 'index', from, from + step - 1)
    for _, class in ipairs(classes) do
      if want > 0 and can_run(filter, class) then
        local part = { class = class, task = string.match(class, '|(.-)|'), lane = class .. PLAIN_LANE }
        -- One group, and one lane in that without a name: if it has keys, the lane without is empty.
        if call('ZCARD', Q .. 'r:' .. class) ~= 1 or call('ZCARD', Q .. 'g:' .. class .. '\n') ~= 1
          or not read_lane(part) then
          return false
        end
      end
    end
    if #classes < step then return true end
    from, step = from + step, 2 * step
  end
  return true
end

local function leave_lane(part)
  local head, lanes = part.head, Q .. 'g:' .. part.class .. '\n'
  if head then
    drop_first(part.lane, part.took, part.came_back)
    call('ZADD', lanes, head, part.lane)
    call('ZADD', Q .. 'index', rank(part.class, head), part.class)
  else
    call('DEL', Q .. 'l:' .. part.lane, Q .. 'z:' .. part.lane, lanes, Q .. 'r:' .. part.class)
    call('ZREM', Q .. 'index', part.class)
    if room_of then call('HDEL', Q .. 'class', part.class) end
  end
  slot('t:' .. part.task, part.took)
end

local function write_taken()
  call('HSET', Q .. 'head', unpack(heads))
  call('SADD', Q .. 'h:' .. session, unpack(refs))
  for _, part in ipairs(parts) do leave_lane(part) end
  for what, tat in pairs(spent or {}) do call('ZADD', Q .. 'rate', string.format('%.0f', tat), what) end
  slot('q', #refs)
end

local function keep_reply()
  call('HSET', Q .. 't', session, ARGV[4] .. ' ' .. ARGV[5] .. '\n' .. table.concat(refs, '\n'))
end

local function taken_of_classes()
  local taken = {}
  for _, part in ipairs(parts) do taken[part.class] = part.took end
  return taken
end

local function take_fast()
  if not may_take() then return end
  if call('EXISTS', Q .. 'blocked', Q .. 'offer', Q .. 'stale', Q .. 'set', Q .. 'class', Q .. 'due') > 0
    and not read_special() then return end
  -- A job that fell due may be handed over to a sleeper, which the full script does.
  if early and call('EXISTS', Q .. 'sleep') == 1 then return end
  if not read_classes(read_filter(7)) then return end
  if #refs > 0 then write_taken() end
  if early then add_early(early, taken_of_classes()) end
  if #refs > 0 then events[#events + 1] = 't' .. table.concat(refs, '\nt') end
  if #events > 0 then add_to_feed(table.concat(events, '\n'), #refs + (early and early.moved or 0)) end
  add_numbers(Q .. 'counts', counted)
  add_numbers(Q .. 'running', slots)
  if early then wake_sleepers() end
  keep_reply()
  return { 'ok', given, { 0, {}, {} } }
end

local quick = take_fast()
if quick then return quick end
