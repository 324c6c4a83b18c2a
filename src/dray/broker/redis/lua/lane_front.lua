-- lane_front: the first jobs of a lane.
-- uses: order

-- The number of the first job of a lane; nil if it is empty.
local function lane_head(lane)
  local entry = call('LINDEX', Q .. 'l:' .. lane, 0)
  local back = call('ZRANGE', Q .. 'z:' .. lane, 0, 0, 'WITHSCORES')[2]
  local first = entry and entry_parts(entry)
  if first and back and tonumber(back) < tonumber(first) then return back end
  return first or back
end

-- Merges the entries of a list with jobs that came back, by number.
local function merge_jobs(entries, back, most)
  local ids, numbers, came_back = {}, {}, {}
  local next_entry, next_back = 1, 1
  while #ids < most and (entries[next_entry] or back[next_back]) do
    local number, id
    if entries[next_entry] then number, id = entry_parts(entries[next_entry]) end
    if back[next_back] and (not id or tonumber(back[next_back + 1]) < tonumber(number)) then
      number, id = back[next_back + 1], back[next_back]
      next_back = next_back + 2
    else
      next_entry = next_entry + 1
    end
    local n = #ids + 1
    ids[n], numbers[n], came_back[n] = id, number, (next_back - 1) / 2
  end
  return ids, numbers, came_back
end

-- The first jobs of a lane, stale entries included: ids, their numbers, and how many of the first so many came back
-- (nil: none did).
local function first_jobs(lane, most)
  local entries = call('LRANGE', Q .. 'l:' .. lane, 0, most - 1)
  local back = call('ZRANGE', Q .. 'z:' .. lane, 0, most - 1, 'WITHSCORES')
  if back[1] then return merge_jobs(entries, back, most) end
  local ids, numbers = {}, {}
  for i = 1, #entries do
    local entry = entries[i]
    local space = string.find(entry, ' ', 1, true) or #entry
    ids[i], numbers[i] = string.sub(entry, space + 1), string.sub(entry, 1, space - 1)
  end
  return ids, numbers
end

-- Removes the first jobs of a lane, of which so many came back.
local function drop_first(lane, jobs, came_back)
  if came_back > 0 then call('ZREMRANGEBYRANK', Q .. 'z:' .. lane, 0, came_back - 1) end
  if jobs > came_back then call('LTRIM', Q .. 'l:' .. lane, jobs - came_back, -1) end
end
