-- lanes: jobs join and leave lanes.
-- uses: lane_front blocking
local LONG = 10000
local any_stale

local function has_stale(lane)
  if any_stale == nil then any_stale = call('EXISTS', Q .. 'stale') == 1 end
  return any_stale and call('HEXISTS', Q .. 'stale', lane) == 1
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

-- Lists a lane by its head. A job that joins may change the limit of its lane, which is unblocked.
local function list_lane(class, group, lane, joined)
  if is_blocked(lane) then unblock(lane) end
  call('ZADD', Q .. 'g:' .. class .. '\n' .. group, lane_head(lane), lane)
  if not call('ZSCORE', Q .. 'r:' .. class, group) then
    local turn = call('ZSCORE', Q .. 'rb:' .. class, group) or call('HINCRBY', Q .. 'n', 'turn', 1)
    call('ZADD', Q .. 'r:' .. class, turn, group)
    index_class(class)
  end
  touched[class] = true
  woken.ready[class] = (woken.ready[class] or 0) + joined
end

-- A job joins its lane: behind all others if its number in line is new, else at its old place.
local function lane_add(job)
  local lane = lane_of(job)
  if job.is_last then
    call('RPUSH', Q .. 'l:' .. lane, string.format('%.0f %s', job.line, job.id))
  else
    call('ZADD', Q .. 'z:' .. lane, job.line, job.id)
  end
  job.is_last, job.stands = nil, job.line
  list_lane(job.class, job.group, lane, 1)
end

-- True if an entry of the list of a lane is a ready job's.
local function is_live(lane, entry)
  local line, id = entry_parts(entry)
  local job = load(id)
  return job ~= nil and job.state == 'ready' and job.line == tonumber(line) and lane_of(job) == lane
    and not call('ZSCORE', Q .. 'z:' .. lane, id)
end

local function less_stale(lane, by)
  if call('HINCRBY', Q .. 'stale', lane, -by) <= 0 then call('HDEL', Q .. 'stale', lane) end
end

-- Drops stale entries in front, so that the first entry of a list is always a job's.
local function drop_stale(lane)
  while has_stale(lane) do
    local entry = call('LINDEX', Q .. 'l:' .. lane, 0)
    if entry and is_live(lane, entry) then return end
    if not entry then return call('HDEL', Q .. 'stale', lane) end
    call('LPOP', Q .. 'l:' .. lane)
    less_stale(lane, 1)
  end
end

-- The place of the first entry of a list whose number is above `after`.
local function place_after(list, after)
  local low, high = 0, call('LLEN', list)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if tonumber((entry_parts(call('LINDEX', list, middle)))) > after then high = middle else low = middle + 1 end
  end
  return low
end

-- The number of jobs in a lane.
local function lane_size(lane)
  local stale = call('HGET', Q .. 'stale', lane) or 0
  return call('LLEN', Q .. 'l:' .. lane) - stale + call('ZCARD', Q .. 'z:' .. lane)
end

-- Removes the entry of a job from its lane. To search a long list would take long, so the entry stays and is stale.
local function drop_entry(lane, job)
  if call('ZREM', Q .. 'z:' .. lane, job.id) == 1 then return end
  local list, entry = Q .. 'l:' .. lane, string.format('%.0f %s', job.stands or 0, job.id)
  if call('LINDEX', list, 0) == entry then call('LPOP', list)
  elseif call('LLEN', list) <= LONG then call('LREM', list, 1, entry)
  else
    call('HINCRBY', Q .. 'stale', lane, 1)
    any_stale = true
  end
end

-- An empty lane is removed, and its group and class if they have no other.
local function close_lane(class, group, lane, kind)
  local lanes, ring = Q .. 'g' .. kind .. ':' .. class .. '\n' .. group, Q .. 'r:' .. class
  call('ZREM', lanes, lane)
  if not is_plain_lane(lane) then call('HDEL', Q .. 'lane', lane) end
  if kind == 'b' then call('ZREM', Q .. 'blocked', lane) end
  if call('EXISTS', lanes) == 1 then return end
  if kind == 'b' then
    call('ZREM', Q .. 'rb:' .. class, group)
  else
    -- Its turn is kept for the lanes of the group that are held back, if there are any.
    if has_blocked(class) then call('ZADD', Q .. 'rb:' .. class, 'XX', call('ZSCORE', ring, group), group) end
    call('ZREM', ring, group)
  end
  if call('EXISTS', ring, Q .. 'rb:' .. class) > 0 then return end
  call('ZREM', Q .. 'index', class)
  call('HDEL', Q .. 'class', class)
end

-- Lists a lane by its new head after jobs have left it.
local function lane_left(class, group, lane)
  local kind = is_blocked(lane) and 'b' or ''
  drop_stale(lane)
  local head = lane_head(lane)
  touched[class] = true
  if head then return call('ZADD', Q .. 'g' .. kind .. ':' .. class .. '\n' .. group, head, lane) end
  close_lane(class, group, lane, kind)
end

local function lane_remove(job)
  drop_entry(lane_of(job), job)
  lane_left(job.class, job.group, lane_of(job))
end

-- A ready job whose head says more than its body stands with those that came back: take reads the heads of these.
local function lane_mark(job)
  local lane = lane_of(job)
  drop_entry(lane, job)
  call('ZADD', Q .. 'z:' .. lane, job.line, job.id)
  drop_stale(lane)
end

-- The first jobs of a free lane have been started; `head` is the number of the next, '' if it is not known.
local function lane_shift(class, group, lane, jobs, came_back, head)
  drop_first(lane, jobs, came_back)
  if head == '' then return lane_left(class, group, lane) end
  touched[class] = true
  if head then return call('ZADD', Q .. 'g:' .. class .. '\n' .. group, head, lane) end
  close_lane(class, group, lane, '')
end

local function index_touched()
  for class in pairs(touched) do index_class(class) end
  touched = {}
end
