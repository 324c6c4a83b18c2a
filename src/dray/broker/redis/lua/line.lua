-- line: the order of ready jobs and what holds them back (docs/design.md, section 3).
--
-- `index`    ZSET class -> priority                   class is "priority|task|version"
-- `r:CLASS`  ZSET group -> turn                       the ring: whose turn it is comes first
-- `g:CLASS\nGROUP` ZSET lane -> number of its head    lane is "class\ngroup\nrate key\nrunning key"
-- `l:LANE`   ZSET id -> number in line
-- `class`, `lane` HASH -> what the last job to join declared: {r = {interval, burst}, m = max_running}
-- `running`  HASH q | t:TASK | g:GROUP | k:KEY -> runs held now
-- `rate`     ZSET q | t:TASK | k:KEY -> the GCRA time in µs up to which the rate is used
-- `set`      HASH pause | limits | pause:TASK | limits:TASK -> what an operator set
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

local function store_declared(key, field, rate, most)
  if rate or most then
    call('HSET', Q .. key, field, cmsgpack.pack({ r = rate, m = most }))
  else
    call('HDEL', Q .. key, field)
  end
end

local function declared(key, field)
  local stored = call('HGET', Q .. key, field)
  return stored and cmsgpack.unpack(stored) or {}
end

-- A limit by key is the lane's affair and says nothing about the task as a whole.
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

-- `entries`: number, id, number, id ...
local function line_add(class, group, lane, entries)
  many('ZADD', Q .. 'l:' .. lane, entries)
  local head = call('ZRANGE', Q .. 'l:' .. lane, 0, 0, 'WITHSCORES')[2]
  call('ZADD', Q .. 'g:' .. class .. '\n' .. group, head, lane)
  if not call('ZSCORE', Q .. 'r:' .. class, group) then
    call('ZADD', Q .. 'r:' .. class, call('HINCRBY', Q .. 'n', 'turn', 1), group)
    call('ZADD', Q .. 'index', priority_of(class), class)
  end
  woken.ready[class] = (woken.ready[class] or 0) + #entries / 2
end

local function line_remove(class, group, lane, ids)
  many('ZREM', Q .. 'l:' .. lane, ids)
  local lanes, ring = Q .. 'g:' .. class .. '\n' .. group, Q .. 'r:' .. class
  local head = call('ZRANGE', Q .. 'l:' .. lane, 0, 0, 'WITHSCORES')[2]
  if head then return call('ZADD', lanes, head, lane) end
  call('ZREM', lanes, lane)
  call('HDEL', Q .. 'lane', lane)
  if call('EXISTS', lanes) == 1 then return end
  call('ZREM', ring, group)
  if call('EXISTS', ring) == 1 then return end
  call('ZREM', Q .. 'index', class)
  call('HDEL', Q .. 'class', class)
end

-- GCRA in whole microseconds, as `policy.Rate`: a time too far ahead is the work of a clock that went back.
local function used_until(bucket, rate)
  local tat, at = tonumber(call('ZSCORE', Q .. 'rate', bucket) or 0), now * 1000
  if tat < at or tat > at + rate[2] * rate[1] + 60000000 then return at end
  return tat
end

local function tokens(bucket, rate)
  if not rate then return MANY end
  return math.max(0, math.floor((now * 1000 + rate[2] * rate[1] - used_until(bucket, rate)) / rate[1]))
end

local function spend(bucket, rate, starts)
  if rate and starts > 0 then
    call('ZADD', Q .. 'rate', string.format('%.0f', used_until(bucket, rate) + starts * rate[1]), bucket)
  end
end

local function frees_at(bucket, rate)
  return math.max(now, math.ceil((used_until(bucket, rate) - (rate[2] - 1) * rate[1]) / 1000))
end

local function room_by(what, most)
  if not most then return MANY end
  return math.max(0, most - tonumber(call('HGET', Q .. 'running', what) or 0) - (slots[what] or 0))
end

-- What the operator says of a task wins over what its jobs declare.
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

local function lane_room(group, rate_key, running_key, said)
  local room = MANY
  if group ~= '' then room = room_by('g:' .. group, limits().g) end
  if running_key ~= '' then room = math.min(room, room_by('k:' .. running_key, said.m)) end
  if rate_key ~= '' then room = math.min(room, tokens('k:' .. rate_key, said.r)) end
  return room
end

local function lane_keys(lane)
  return string.match(lane, '^[^\n]*\n[^\n]*\n([^\n]*)\n(.*)$')
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

-- Of the group whose turn it is the lane with the oldest head, stepping over what is held back. What a script has found
-- held back it need not look at again: nothing that runs in it frees a slot of a lane.
local PAGE = 50
local held_back = {}
local function free_lane(class)
  local ring, first = Q .. 'r:' .. class, 0
  while true do
    local groups = call('ZRANGE', ring, first, first + PAGE - 1)
    for _, group in ipairs(groups) do
      local from = 0
      while true do
        local lanes = call('ZRANGE', Q .. 'g:' .. class .. '\n' .. group, from, from + PAGE - 1, 'WITHSCORES')
        for i = 1, #lanes, 2 do
          local rate_key, running_key, said, room
          if not held_back[lanes[i]] then
            rate_key, running_key = lane_keys(lanes[i])
            said = said_by_lane(rate_key, running_key, lanes[i])
            room = lane_room(group, rate_key, running_key, said)
            if room == 0 then held_back[lanes[i]] = true end
          end
          if room and room > 0 then
            return {
              class = class, group = group, lane = lanes[i], head = tonumber(lanes[i + 1]), room = room, said = said,
              rate_key = rate_key, running_key = running_key,
              alone = first == 0 and #groups == 1 and from == 0 and #lanes == 2,
              only_group = first == 0 and #groups == 1,
            }
          end
        end
        if #lanes < 2 * PAGE then break end
        from = from + PAGE
      end
    end
    if #groups < PAGE then return nil end
    first = first + PAGE
  end
end

-- What a worker can run, from five arguments at `at`: version, tasks (JSON map or ''), priorities (the same).
local function read_filter(at)
  return {
    v = tonumber(ARGV[at]),
    t = ARGV[at + 1] ~= '' and cjson.decode(ARGV[at + 1]) or nil,
    p = ARGV[at + 2] ~= '' and cjson.decode(ARGV[at + 2]) or nil,
  }
end

-- The classes that a filter lets run and of which a lane is free, in the order to look at them.
local function open_classes(filter)
  local open = {}
  if setting('pause') then return open end
  for _, class in ipairs(call('ZRANGE', Q .. 'index', 0, -1)) do
    local priority, task = string.match(class, '^(%d+)|(.-)|')
    if can_run(filter, class) and not setting('pause:' .. task) then
      local free = free_lane(class)
      if free then
        free.task, free.priority = task, tonumber(priority)
        open[#open + 1] = free
      end
    end
  end
  table.sort(open, function(one, other)
    if one.priority ~= other.priority then return one.priority < other.priority end
    return one.head < other.head
  end)
  return open
end
