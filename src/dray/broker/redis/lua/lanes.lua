-- lanes: keeps the order of ready jobs and the limits that hold them back (docs/design.md, section 3).
-- uses: plain
--
-- `index`    ZSET class -> priority, number of its next job (see `rank`)     class is "priority|task|version"
-- `r:CLASS`  ZSET group -> turn                       the ring: the group whose turn it is comes first
-- `g:CLASS\nGROUP` ZSET lane -> number of its head    lane is "class\ngroup\nrate key\nrunning key"
-- `l:LANE`   ZSET id -> number in line
-- `rb:CLASS`, `gb:CLASS\nGROUP`  the same for lanes that a limit of their group or key holds back: `take` does not meet
--          them
-- `blocked`  ZSET lane -> when it may be looked at again; `bc:CAUSE` SET lanes that wait for a slot of a group or key
-- `class`, `lane` HASH -> limits that the last job to join declared: {r = {interval, burst}, m = max_running}
-- `running`  HASH q | t:TASK | g:GROUP | k:KEY -> runs held now
-- `rate`     ZSET q | t:TASK | k:KEY | e (jobs accepted) -> the GCRA time in µs up to which the rate is used
-- `set`      HASH pause | limits | pause:TASK | limits:TASK -> settings of an operator
-- All but the settings exist only while they have jobs.
local MANY = 2 ^ 30
local settings

local function setting(name)
  if not settings then
    settings = {}
    local stored = call('HGETALL', Q .. 'set')
    for i = 1, #stored, 2 do settings[stored[i]] = stored[i + 1] end
  end
  return settings[name]
end

local function limits(task)
  local stored = setting(task and 'limits:' .. task or 'limits')
  return stored and cmsgpack.unpack(stored) or {}
end

local function paused(task)
  return setting('pause') or setting('pause:' .. task)
end

local function priority_of(class)
  return tonumber(string.match(class, '^%d+'))
end

local function declared(key, field)
  local stored = call('HGET', Q .. key, field)
  return stored and cmsgpack.unpack(stored) or {}
end

-- A limit by key belongs to the lane and not to the task as a whole.
local function declare(job)
  local lane = lane_of(job)
  local rate, most = job.o.r, job.o.m
  if job.rate_key == '' and job.running_key == '' then return store_declared('class', job.class, rate, most) end
  local old = declared('class', job.class)
  if job.rate_key == '' then old.r = rate end
  if job.running_key == '' then old.m = most end
  store_declared('class', job.class, old.r, old.m)
  store_declared('lane', lane, job.rate_key ~= '' and rate or nil, job.running_key ~= '' and most or nil)
end

local function lane_parts(lane)
  return string.match(lane, '^([^\n]*)\n([^\n]*)\n([^\n]*)\n(.*)$')
end

local function is_plain_lane(lane)
  return string.sub(lane, -3) == '\n\n\n'
end

local function is_blocked(lane)
  return not is_plain_lane(lane) and call('ZSCORE', Q .. 'blocked', lane)
end

-- A lane is held back until a time, or until a slot of its group or key is free again (`cause`).
local function block(lane, until_, cause)
  local class, group = lane_parts(lane)
  local free, ring, name = Q .. 'g:' .. class .. '\n' .. group, Q .. 'r:' .. class, class .. '\n' .. group
  call('ZADD', Q .. 'gb:' .. name, call('ZSCORE', free, lane), lane)
  call('ZADD', Q .. 'rb:' .. class, call('ZSCORE', ring, group), group)
  call('ZADD', Q .. 'blocked', until_, lane)
  if cause then call('SADD', Q .. 'bc:' .. cause, lane) end
  call('ZREM', free, lane)
  if call('EXISTS', free) == 0 then call('ZREM', ring, group) end
  touched[class] = true
end

local function unblock(lane)
  if call('ZREM', Q .. 'blocked', lane) == 0 then return end
  local class, group = lane_parts(lane)
  local name, ring = class .. '\n' .. group, Q .. 'r:' .. class
  call('ZADD', Q .. 'g:' .. name, call('ZSCORE', Q .. 'gb:' .. name, lane), lane)
  call('ZREM', Q .. 'gb:' .. name, lane)
  if not call('ZSCORE', ring, group) then call('ZADD', ring, call('ZSCORE', Q .. 'rb:' .. class, group), group) end
  if call('EXISTS', Q .. 'gb:' .. name) == 0 then call('ZREM', Q .. 'rb:' .. class, group) end
  touched[class] = true
end

local function unblock_due()
  for _, lane in ipairs(call('ZRANGEBYSCORE', Q .. 'blocked', '-inf', now, 'LIMIT', 0, 1000)) do unblock(lane) end
end

local function unblock_cause(cause)
  for _, lane in ipairs(call('SMEMBERS', Q .. 'bc:' .. cause)) do unblock(lane) end
  call('DEL', Q .. 'bc:' .. cause)
end

-- All lanes of a class, held back or not.
local function all_lanes(class)
  local lanes = {}
  for _, kind in ipairs({ '', 'b' }) do
    for _, group in ipairs(call('ZRANGE', Q .. 'r' .. kind .. ':' .. class, 0, -1)) do
      for _, lane in ipairs(call('ZRANGE', Q .. 'g' .. kind .. ':' .. class .. '\n' .. group, 0, -1)) do
        lanes[#lanes + 1] = lane
      end
    end
  end
  return lanes
end

-- `entries`: number, id, number, id ... A job that joins may change the limit of its lane, which is unblocked.
local function lane_add(class, group, lane, entries)
  many('ZADD', Q .. 'l:' .. lane, entries)
  if is_blocked(lane) then unblock(lane) end
  local head = call('ZRANGE', Q .. 'l:' .. lane, 0, 0, 'WITHSCORES')[2]
  call('ZADD', Q .. 'g:' .. class .. '\n' .. group, head, lane)
  if not call('ZSCORE', Q .. 'r:' .. class, group) then
    local turn = call('ZSCORE', Q .. 'rb:' .. class, group) or call('HINCRBY', Q .. 'n', 'turn', 1)
    call('ZADD', Q .. 'r:' .. class, turn, group)
    index_class(class)
  end
  touched[class] = true
  woken.ready[class] = (woken.ready[class] or 0) + #entries / 2
end

-- `first`: the ids are the first so many of the lane.
local function lane_remove(class, group, lane, ids, first)
  if first then call('ZREMRANGEBYRANK', Q .. 'l:' .. lane, 0, first - 1) else many('ZREM', Q .. 'l:' .. lane, ids) end
  local kind = is_blocked(lane) and 'b' or ''
  local lanes, ring = Q .. 'g' .. kind .. ':' .. class .. '\n' .. group, Q .. 'r:' .. class
  local head = call('ZRANGE', Q .. 'l:' .. lane, 0, 0, 'WITHSCORES')[2]
  touched[class] = true
  if head then return call('ZADD', lanes, head, lane) end
  call('ZREM', lanes, lane)
  call('HDEL', Q .. 'lane', lane)
  if kind == 'b' then call('ZREM', Q .. 'blocked', lane) end
  if call('EXISTS', lanes) == 1 then return end
  if kind == 'b' then
    call('ZREM', Q .. 'rb:' .. class, group)
  else
    -- Its turn is kept for the lanes of the group that are held back, if there are any.
    call('ZADD', Q .. 'rb:' .. class, 'XX', call('ZSCORE', ring, group), group)
    call('ZREM', ring, group)
  end
  if call('EXISTS', ring) == 1 or call('EXISTS', Q .. 'rb:' .. class) == 1 then return end
  call('ZREM', Q .. 'index', class)
  call('HDEL', Q .. 'class', class)
end

local function used_until(bucket, rate)
  return gcra_used(tonumber(call('ZSCORE', Q .. 'rate', bucket) or 0), rate, now * 1000)
end

local function tokens(bucket, rate)
  if not rate then return MANY end
  return gcra_starts(used_until(bucket, rate), rate, now * 1000)
end

-- Jobs with one rate key may declare different rates, so the lanes that it holds back are unblocked.
local function spend(bucket, rate, starts)
  if not rate or starts == 0 then return end
  call('ZADD', Q .. 'rate', string.format('%.0f', used_until(bucket, rate) + starts * rate[1]), bucket)
  if string.byte(bucket) == 107 then unblock_cause('r' .. bucket) end
end

local function frees_at(bucket, rate)
  return math.max(now, math.ceil((used_until(bucket, rate) - (rate[2] - 1) * rate[1]) / 1000))
end

local function room_by(what, most)
  if not most then return MANY end
  return math.max(0, most - tonumber(call('HGET', Q .. 'running', what) or 0) - (slots[what] or 0))
end

-- A limit set by the operator wins over one that jobs declare.
local function task_limit(task, said)
  local own = limits(task)
  return own.r or said.r, own.m or said.m
end

local function class_room(task, said)
  local queue = limits()
  local rate, most = task_limit(task, said)
  return math.min(
    room_by('q', queue.m), room_by('t:' .. task, most), tokens('q', queue.r), tokens('t:' .. task, rate)
  )
end

-- The number of jobs that the limits of the group and the keys let start; if none, until when, and the cause.
local function lane_room(group, rate_key, running_key, said)
  local room = MANY
  if group ~= '' then
    room = room_by('g:' .. group, limits().g)
    if room == 0 then return 0, 2 ^ 52, 'g:' .. group end
  end
  if running_key ~= '' then
    room = math.min(room, room_by('k:' .. running_key, said.m))
    if room == 0 then return 0, 2 ^ 52, 'k:' .. running_key end
  end
  if rate_key ~= '' and said.r then
    room = math.min(room, tokens('k:' .. rate_key, said.r))
    if room == 0 then return 0, frees_at('k:' .. rate_key, said.r), 'rk:' .. rate_key end
  end
  return room
end

local function said_by_lane(rate_key, running_key, lane)
  if rate_key == '' and running_key == '' then return {} end
  return declared('lane', lane)
end

local function spend_start(task, rate_key, class_said, lane_said, starts)
  spend('q', limits().r, starts)
  spend('t:' .. task, (task_limit(task, class_said)), starts)
  if rate_key ~= '' then spend('k:' .. rate_key, lane_said.r, starts) end
end

-- The lane with the oldest head, of the group whose turn it is. Lanes that are held back are put aside, so that each is
-- met once, and BLOCK_STEP of them per script: the next take goes on.
local BLOCK_STEP = 500
local put_aside = 0
local function free_lane(class)
  while put_aside < BLOCK_STEP do
    local group = call('ZRANGE', Q .. 'r:' .. class, 0, 0)[1]
    if not group then return nil end
    local lanes = Q .. 'g:' .. class .. '\n' .. group
    local first = call('ZRANGE', lanes, 0, 0, 'WITHSCORES')
    local lane = first[1]
    if is_plain_lane(lane) then
      return {
        class = class, group = group, lane = lane, head = tonumber(first[2]), room = MANY, said = {}, rate_key = '',
      }
    end
    local _, _, rate_key, running_key = lane_parts(lane)
    local said = said_by_lane(rate_key, running_key, lane)
    local room, until_, cause = lane_room(group, rate_key, running_key, said)
    if room > 0 then
      return {
        class = class, group = group, lane = lane, head = tonumber(first[2]), room = room, said = said,
        rate_key = rate_key,
      }
    end
    block(lane, until_, cause)
    put_aside = put_aside + 1
  end
end

-- Two flags: no other group has a turn to take; no other lane of the class can be next.
local function alone(free)
  local only = call('ZCARD', Q .. 'r:' .. free.class) == 1
  local sole = only and call('ZCARD', Q .. 'g:' .. free.class .. '\n' .. free.group) == 1
  return only and call('EXISTS', Q .. 'rb:' .. free.class) == 0, sole
end

-- The filter in three arguments from `at` on: version, tasks (JSON map or ''), priorities (the same).
local function read_filter(at)
  return {
    v = tonumber(ARGV[at]),
    t = ARGV[at + 1] ~= '' and cjson.decode(ARGV[at + 1]) or nil,
    p = ARGV[at + 2] ~= '' and cjson.decode(ARGV[at + 2]) or nil,
  }
end

function index_touched()
  for class in pairs(touched) do index_class(class) end
  touched = {}
end

local function in_order(one, other)
  if one.priority ~= other.priority then return one.priority < other.priority end
  return one.head < other.head
end

-- Iterates over the classes that the filter allows and that have a free lane, in the order of taking. They are looked
-- at in steps: with many tasks a call meets only those whose jobs it hands out.
local CLASS_STEP = 64
local function open_classes(filter)
  if next(touched) then index_touched() end
  local classes, met, open, given = setting('pause') and {} or call('ZRANGE', Q .. 'index', 0, -1), 0, {}, 0
  local function look()
    open, given = {}, 0
    while #open < CLASS_STEP and met < #classes do
      met = met + 1
      local priority, task = string.match(classes[met], '^(%d+)|(.-)|')
      if can_run(filter, classes[met]) and not setting('pause:' .. task) then
        local free = free_lane(classes[met])
        if free then
          free.task, free.priority = task, tonumber(priority)
          open[#open + 1] = free
        end
      end
    end
    table.sort(open, in_order)
  end
  return function()
    if given == #open then look() end
    given = given + 1
    return open[given]
  end
end
