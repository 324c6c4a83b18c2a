-- repair_lanes: checks and repairs lanes, and the places of ready jobs in them.
-- uses: repair_look
--
-- Lua allows a script 200 local names, so these functions are fields of a table.
local lane_check, seen = {}, {}

-- Lists a lane as if its first job had just joined: no limit holds it back until `take` meets one.
function lane_check.relist_lane(lane)
  local class, group = lane_parts(lane)
  local name = class .. '\n' .. group
  note_repair('lane')
  seen[lane] = true
  call('ZREM', Q .. 'blocked', lane)
  call('ZREM', Q .. 'gb:' .. name, lane)
  call('ZADD', Q .. 'g:' .. name, lane_head(lane), lane)
  if not call('ZSCORE', Q .. 'r:' .. class, group) then
    call('ZADD', Q .. 'r:' .. class, call('HINCRBY', Q .. 'n', 'turn', 1), group)
  end
  if call('EXISTS', Q .. 'gb:' .. name) == 0 then call('ZREM', Q .. 'rb:' .. class, group) end
  index_class(class)
  woken.all = true
end

-- True if the lane is in its group, the group in its ring, and the class in the index.
function lane_check.lane_is_listed(job)
  local lane = lane_of(job)
  if seen[lane] == nil then
    local kind = is_blocked(lane) and 'b' or ''
    seen[lane] = call('ZSCORE', Q .. 'g' .. kind .. ':' .. job.class .. '\n' .. job.group, lane) == lane_head(lane)
      and call('ZSCORE', Q .. 'r' .. kind .. ':' .. job.class, job.group) ~= false
      and call('ZSCORE', Q .. 'index', job.class) ~= false
  end
  return seen[lane]
end

-- The entries of short lists, read at once. A long one is searched for a few jobs only: the next round tries others.
local entries_of, searches = {}, 20
function lane_check.stands_in_lane(job)
  local lane = lane_of(job)
  if call('ZSCORE', Q .. 'z:' .. lane, job.id) then return true end
  local list, entry = Q .. 'l:' .. lane, string.format('%.0f %s', job.line or 0, job.id)
  if entries_of[lane] == nil then
    entries_of[lane] = call('LLEN', list) <= LONG and {}
    for _, one in ipairs(entries_of[lane] and call('LRANGE', list, 0, -1) or {}) do entries_of[lane][one] = true end
  end
  if entries_of[lane] then return entries_of[lane][entry] == true end
  searches = searches - 1
  return searches < 0 or call('LINDEX', list, place_after(list, job.line - 1)) == entry
end

function lane_check.check_lane(class, group, lane, kind, score)
  drop_stale(lane)
  local head = lane_head(lane)
  if not head then
    note_repair('lane')
    call('ZREM', Q .. 'g' .. kind .. ':' .. class .. '\n' .. group, lane)
    call('ZREM', Q .. 'blocked', lane)
    call('HDEL', Q .. 'lane', lane)
  elseif head ~= score or (call('ZSCORE', Q .. 'blocked', lane) ~= false) ~= (kind == 'b') then
    lane_check.relist_lane(lane)
  end
end

-- A class stands in `index` where its next job says.
function lane_check.check_rank(class)
  local before = call('ZSCORE', Q .. 'index', class)
  index_class(class)
  if call('ZSCORE', Q .. 'index', class) ~= before then note_repair('lane') end
end

-- Removes the entries of jobs that stand elsewhere; those that are known to be stale are no damage.
function lane_check.check_entries(class, group, lane, entries)
  local stale, left = tonumber(call('HGET', Q .. 'stale', lane) or 0), false
  for _, entry in ipairs(entries) do
    if not is_live(lane, entry) then
      call('LREM', Q .. 'l:' .. lane, 1, entry)
      left = true
      if stale > 0 then less_stale(lane, 1) else note_repair('place') end
      stale = stale - 1
    end
  end
  if left then lane_left(class, group, lane) end
end

function lane_check.check_returned(class, group, lane)
  local ids, left = call('ZRANGE', Q .. 'z:' .. lane, 0, most - 1), false
  preload(ids)
  for _, id in ipairs(ids) do
    local job = load(id)
    if not job or job.state ~= 'ready' or lane_of(job) ~= lane then
      note_repair('place')
      call('ZREM', Q .. 'z:' .. lane, id)
      left = true
    end
  end
  if left then lane_left(class, group, lane) end
end

-- Checks the jobs of a lane from place `at[5]` on. Returns the next cursor and the number of jobs seen.
function lane_check.check_jobs_of(at, class, group, found, left)
  local lane = found[1]
  local entries, ids = call('LRANGE', Q .. 'l:' .. lane, at[5], at[5] + left - 1), {}
  for i, entry in ipairs(entries) do
    local _, id = entry_parts(entry)
    ids[i] = id
  end
  preload(ids)
  lane_check.check_entries(class, group, lane, entries)
  if at[5] == 0 then
    lane_check.check_returned(class, group, lane)
    lane_check.check_lane(class, group, lane, at[2], found[2])
  end
  if #entries < left then return { at[1], at[2], at[3], at[4] + 1, 0 }, #entries end
  return { at[1], at[2], at[3], at[4], at[5] + #entries }, #entries
end

-- After the last group of a class come the lanes that are held back, then the next class.
function lane_check.next_class(at, class)
  if at[2] == '' then return { at[1], 'b', 0, 0, 0 } end
  if call('EXISTS', Q .. 'r:' .. class) == 0 and call('EXISTS', Q .. 'rb:' .. class) == 0 then
    note_repair('lane')
    call('ZREM', Q .. 'index', class)
    call('HDEL', Q .. 'class', class)
  end
  return { at[1] + 1, '', 0, 0, 0 }
end

function lane_check.next_group(at, class, group)
  if call('EXISTS', Q .. 'g' .. at[2] .. ':' .. class .. '\n' .. group) == 0 then
    note_repair('lane')
    call('ZREM', Q .. 'r' .. at[2] .. ':' .. class, group)
  end
  return { at[1], at[2], at[3] + 1, 0, 0 }
end

-- Checks lanes from class to group to lane to job. Cursor: ranks of {class, '' or 'b', group, lane, job}.
function lane_check.check_line()
  local at, left = look.line or { 0, '', 0, 0, 0 }, most
  while at and left > 0 do
    local class = call('ZRANGE', Q .. 'index', at[1], at[1])[1]
    if class and at[2] == '' and at[3] + at[4] + at[5] == 0 then lane_check.check_rank(class) end
    local group = class and call('ZRANGE', Q .. 'r' .. at[2] .. ':' .. class, at[3], at[3])[1]
    local lanes = group and Q .. 'g' .. at[2] .. ':' .. class .. '\n' .. group
    local found = lanes and call('ZRANGE', lanes, at[4], at[4], 'WITHSCORES') or {}
    local jobs_seen = 0
    if not class then at = nil
    elseif not group then at = lane_check.next_class(at, class)
    elseif not found[1] then at = lane_check.next_group(at, class, group)
    else at, jobs_seen = lane_check.check_jobs_of(at, class, group, found, left)
    end
    left = left - 1 - jobs_seen
  end
  look.line = at
end

-- The number of stale entries is counted in short lists.
function lane_check.check_stale()
  local counts = stretch('HSCAN', 'stale', 20)
  for i = 1, #counts, 2 do
    local lane, stale = counts[i], 0
    if call('LLEN', Q .. 'l:' .. lane) <= 1000 then
      for _, entry in ipairs(call('LRANGE', Q .. 'l:' .. lane, 0, -1)) do
        if not is_live(lane, entry) then stale = stale + 1 end
      end
      if stale ~= tonumber(counts[i + 1]) then
        note_repair('lane')
        less_stale(lane, tonumber(counts[i + 1]) - stale)
      end
    end
  end
end

-- A lane in `blocked` must be among the blocked lanes of its group, else every script that touches it fails.
function lane_check.check_blocked()
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
