-- list_ids: lists a page of the ids of one queue that stand in one kind of place.
-- uses: lanes
--
-- ARGV[3] place: waiting, due, ready, held, ended
-- ARGV[4] cursor, '' at the start: "set or lane, score, member", separated by byte 31  [5] limit
-- returns {1 if the page is the last, cursor, ids}
--
-- Up to SMALL jobs of a place are listed together and in order (ready ones by their number in line, across lanes);
-- more ready jobs are listed lane by lane.
local SMALL, STEP = 1000, 1000
local kind, most = ARGV[3], tonumber(ARGV[5])

-- Running jobs are few enough to be listed at once.
local function list_held()
  local ids, seen = {}, {}
  for _, session in ipairs(call('HKEYS', Q .. 's')) do
    for _, ref in ipairs(call('SMEMBERS', Q .. 'h:' .. session)) do
      local id = string.match(ref, '^%d+ (.*)$')
      if not seen[id] then ids[#ids + 1] = id end
      seen[id] = true
    end
  end
  return { 1, '', ids }
end

local function name_of(text)
  return kind == 'waiting' and text or id_of(text)
end

-- True for a member of `due` that is a waiting job: it is listed with these.
local wakes = kind == 'due' and call('HEXISTS', Q .. 'n', 'wakes') == 1
local function only_wakes(text)
  return wakes and call('ZSCORE', Q .. 'waiting', id_of(text))
end

-- A page of a sorted set, after the score and member of the cursor; a small set is one page.
local function page_of_set(score, last)
  local ids, cursor, start = {}, '', 0
  if not score and call('ZCARD', Q .. kind) <= SMALL then most = SMALL + 1 end
  while true do
    local members = call('ZRANGEBYSCORE', Q .. kind, score or '-inf', '+inf', 'WITHSCORES', 'LIMIT', start, most)
    for i = 1, #members, 2 do
      local listed = score and tonumber(members[i + 1]) == tonumber(score) and members[i] <= last
      if not listed and not only_wakes(members[i]) then
        ids[#ids + 1], cursor = name_of(members[i]), '\31' .. members[i + 1] .. '\31' .. members[i]
      end
      if #ids == most then return { 0, cursor, ids } end
    end
    if #members < 2 * most then return { 1, '', ids } end
    start = start + most
  end
end

-- Jobs {number, id} of a lane whose number is above `after`, in order, at least `count` of them if there are as many.
local function jobs_of_lane(lane, after, count)
  local found, list = {}, Q .. 'l:' .. lane
  local back = call('ZRANGEBYSCORE', Q .. 'z:' .. lane, '(' .. string.format('%.0f', after), '+inf', 'WITHSCORES',
    'LIMIT', 0, count)
  for i = 1, #back, 2 do found[#found + 1] = { tonumber(back[i + 1]), back[i] } end
  local stale, start = call('HEXISTS', Q .. 'stale', lane) == 1, place_after(list, after)
  local joined = 0
  while joined < count do
    local entries = call('LRANGE', list, start, start + STEP - 1)
    for _, entry in ipairs(entries) do
      if joined < count and (not stale or is_live(lane, entry)) then
        local number, id = entry_parts(entry)
        found[#found + 1], joined = { tonumber(number), id }, joined + 1
      end
    end
    if #entries < STEP then break end
    start = start + STEP
  end
  table.sort(found, function(one, other) return one[1] < other[1] end)
  return found
end

local function ready_lanes()
  local lanes, total = {}, 0
  for _, class in ipairs(call('ZRANGE', Q .. 'index', 0, -1)) do
    for _, lane in ipairs(all_lanes(class)) do
      lanes[#lanes + 1], total = lane, total + lane_size(lane)
    end
  end
  table.sort(lanes)
  return lanes, total
end

local function list_all(lanes)
  local all, ids = {}, {}
  for _, lane in ipairs(lanes) do
    for _, one in ipairs(jobs_of_lane(lane, -1, SMALL)) do all[#all + 1] = one end
  end
  table.sort(all, function(one, other) return one[1] < other[1] end)
  for i, one in ipairs(all) do ids[i] = one[2] end
  return { 1, '', ids }
end

local function list_ready(from, score)
  local lanes, total = ready_lanes()
  if total <= SMALL and not from then return list_all(lanes) end
  local ids = {}
  for _, lane in ipairs(lanes) do
    if not from or lane >= from then
      local found = jobs_of_lane(lane, lane == from and tonumber(score) or -1, most - #ids)
      for i = 1, math.min(#found, most - #ids) do
        ids[#ids + 1] = found[i][2]
        if #ids == most then return { 0, lane .. '\31' .. string.format('%.0f', found[i][1]) .. '\31', ids } end
      end
    end
  end
  return { 1, '', ids }
end

local from, score, last = string.match(ARGV[4], '^([^\31]*)\31([^\31]*)\31(.*)$')
if kind == 'held' then return list_held() end
if kind == 'ready' then return list_ready(from, score) end
return page_of_set(score, last)
