-- take_plain: the fast path of take, for a queue in which nothing is held back, offered or paused, from lanes without
-- group and keys, of simple jobs that start for the first time. Limits of the queue and of tasks are counted as in
-- take. Otherwise the full script goes on; everything is read before anything is written, so it finds nothing changed,
-- except that simple jobs that were due are ready: `early` lists them.
-- uses: plain due
--
-- Takes and returns the same as take.
local early
local function plainly()
  local session, want = ARGV[3], tonumber(ARGV[6])
  if ARGV[10] ~= '' or want > 1000 then return end
  local lease, last = call('HGET', Q .. 's', session), call('HGET', Q .. 't', session)
  if not lease or (last and tonumber(string.match(last, '^%d+')) >= tonumber(ARGV[4])) then return end
  local now, at = tonumber(ARGV[1]), ARGV[1]
  if not now then
    local time = call('TIME')
    at = time[1] .. string.sub('00000' .. time[2], -6, -4)
    now = tonumber(at)
  end
  if now >= cmsgpack.unpack(lease).x then return end
  local special = call('EXISTS', Q .. 'blocked', Q .. 'offer', Q .. 'set', Q .. 'class', Q .. 'due') > 0
  local set, queue, spent, started, micros = {}, {}, {}, {}, now * 1000
  if special then
    if call('EXISTS', Q .. 'blocked', Q .. 'offer') > 0 then return end
    local stored = call('HGETALL', Q .. 'set')
    for i = 1, #stored, 2 do
      if string.sub(stored[i], 1, 5) == 'pause' then return end
      set[stored[i]] = cmsgpack.unpack(stored[i + 1])
    end
    queue = set.limits or {}
    local fallen = fall_due(at, 1000)
    if fallen == false then return end
    early = fallen
  end

  -- The number of `most` jobs that one limit (of the queue or a task) lets start; as `class_room`.
  local function within(most, what, top, rate)
    if top then
      local running = (call('HGET', Q .. 'running', what) or 0) + (started[what] or 0)
      most = math.min(most, math.max(0, top - running))
    end
    if not rate then return most end
    local tat = spent[what] or tonumber(call('ZSCORE', Q .. 'rate', what) or 0)
    return math.min(most, gcra_starts(gcra_used(tat, rate, micros), rate, micros))
  end

  local function room(part)
    local stored = call('HGET', Q .. 'class', part.class)
    local said, own = stored and cmsgpack.unpack(stored) or {}, set['limits:' .. part.task] or {}
    part.rate = own.r or said.r
    return within(within(want, 'q', queue.m, queue.r), 't:' .. part.task, own.m or said.m, part.rate)
  end

  local function count(what, rate, took)
    started[what] = (started[what] or 0) + took
    if not rate or took == 0 then return end
    local tat = spent[what] or tonumber(call('ZSCORE', Q .. 'rate', what) or 0)
    spent[what] = gcra_used(tat, rate, micros) + took * rate[1]
  end

  -- Names have no characters that JSON escapes.
  local version, tasks, priorities = tonumber(ARGV[7]), ARGV[8], ARGV[9]
  local function open(class)
    local priority, task, needs = string.match(class, '^(%d+)|(.-)|(%d+)$')
    if tonumber(needs) > version
      or (tasks ~= '' and not string.find(tasks, '"' .. task .. '":', 1, true))
      or (priorities ~= '' and not string.find(priorities, '"' .. priority .. '":', 1, true)) then
      return nil
    end
    return { class = class, task = task, lane = class .. '\n\n\n' }
  end

  local fresh, refs, texts, parts = {}, {}, {}, {}
  -- Reads jobs of a lane; false if one is not simple.
  local function read(part)
    local most = special and room(part) or want
    if most == 0 then return true end
    local ids = call('ZRANGE', Q .. 'l:' .. part.lane, 0, most, 'WITHSCORES')
    local names = {}
    for i = 1, math.min(#ids, 2 * most), 2 do names[#names + 1] = ids[i] end
    local heads, bodies = call('HMGET', Q .. 'head', unpack(names)), call('HMGET', Q .. 'job', unpack(names))
    local n = #refs
    for i, id in ipairs(names) do
      local body = bodies[i]
      if heads[i] or not body then return false end
      local a = string.sub(body, -string.byte(body, -2) * 256 - string.byte(body, -1) - 2, -3)
      local more = string.find(a, '\n', 17, true)
      if more and not string.find(a, '^' .. MORE, more) then return false end
      local place = 2 * (n + i)
      refs[n + i] = '1 ' .. id
      fresh[place - 1], fresh[place] = id, body
      texts[place - 1], texts[place] = id, 'h1 ' .. ids[2 * i] .. ' ' .. at .. ' ' .. session .. '\n' .. a
    end
    part.took, part.head = #names, ids[2 * #names + 2]
    want = want - #names
    if special then
      count('q', queue.r, #names)
      count('t:' .. part.task, part.rate, #names)
    end
    parts[#parts + 1] = part
    return true
  end

  -- The classes stand in the order of taking; with many tasks, a call meets only those whose jobs it hands out.
  local from, step = 0, 16
  while want > 0 do
    local classes = call('ZRANGE', Q .. 'index', from, from + step - 1)
    for _, class in ipairs(classes) do
      local part = want > 0 and open(class)
      if part then
        local groups = call('ZRANGE', Q .. 'r:' .. part.class, 0, 1)
        local lanes = call('ZRANGE', Q .. 'g:' .. part.class .. '\n', 0, 1)
        if #groups ~= 1 or groups[1] ~= '' or #lanes ~= 1 or lanes[1] ~= part.lane then return end
        if not read(part) then return end
      end
    end
    if #classes < step then break end
    from, step = from + step, 2 * step
  end

  local moved = early and early.moved or 0
  if #refs > 0 then
    call('HSET', Q .. 'head', unpack(texts))
    call('SADD', Q .. 'h:' .. session, unpack(refs))
    for _, part in ipairs(parts) do
      local lane, group = Q .. 'l:' .. part.lane, Q .. 'g:' .. part.class .. '\n'
      if part.head then
        call('ZREMRANGEBYRANK', lane, 0, part.took - 1)
        call('ZADD', group, part.head, part.lane)
        call('ZADD', Q .. 'index', rank(part.class, part.head), part.class)
      else
        call('DEL', lane, group, Q .. 'r:' .. part.class)
        call('ZREM', Q .. 'index', part.class)
        if special then call('HDEL', Q .. 'class', part.class) end
      end
      call('HINCRBY', Q .. 'running', 't:' .. part.task, part.took)
      if moved > 0 then early.ready[part.class] = (early.ready[part.class] or 0) - part.took end
    end
    call('HINCRBY', Q .. 'running', 'q', #refs)
    for what, tat in pairs(spent) do call('ZADD', Q .. 'rate', string.format('%.0f', tat), what) end
    call('HINCRBY', Q .. 'counts', 'h', #refs)
  end
  if #refs + moved > 0 then
    if moved > 0 and call('HINCRBY', Q .. 'counts', 's', -moved) == 0 then call('HDEL', Q .. 'counts', 's') end
    if call('HINCRBY', Q .. 'counts', 'r', moved - #refs) == 0 then call('HDEL', Q .. 'counts', 'r') end
    local events = #refs > 0 and 't' .. table.concat(refs, '\nt') or ''
    if moved > 0 then
      events = table.concat(early.events, '\n') .. (#refs > 0 and '\n' or '') .. events
      -- The jobs it took itself need no other worker.
      local asleep = call('EXISTS', Q .. 'sleep') == 1
      for class, left in pairs(asleep and early.ready or {}) do wake_for_class(class, left) end
    end
    local number, total = call('HINCRBY', Q .. 'n', 'feed', 1), call('HINCRBY', Q .. 'n', 'events', #refs + moved)
    call('XADD', Q .. 'feed', 'MAXLEN', '~', math.max(100, math.min(10000, math.floor(200000 * number / total))),
      number .. '-0', 'a', at, 'e', events)
  end
  call('HSET', Q .. 't', session, ARGV[4] .. ' ' .. ARGV[5] .. '\n' .. table.concat(refs, '\n'))
  return { 'fresh', fresh, { 0, {}, {} } }
end

local quick = plainly()
if quick then return quick end
