-- list_ids: lists a page of the ids of one queue that stand in one kind of place.
-- uses: base job lanes
--
-- ARGV[3] place: w waiting, d due, r ready, h held, e ended
-- ARGV[4] cursor, '' at the start: "set, score, member", separated by byte 31  [5] limit
-- returns {1 if the page is the last, cursor, ids}
--
-- Up to SMALL jobs of a place are listed together and in order (ready ones by their number in line, across lanes);
-- a larger place is listed lane by lane.
local SMALL = 1000
local kind, most = ARGV[3], tonumber(ARGV[5])
local sets = {}
if kind == 'w' then sets = { Q .. 'waiting' }
elseif kind == 'd' then sets = { Q .. 'due' }
elseif kind == 'e' then sets = { Q .. 'ended' }
elseif kind == 'h' then
  -- Running jobs are few enough to be listed at once.
  local ids, seen = {}, {}
  for _, session in ipairs(call('HKEYS', Q .. 's')) do
    for _, ref in ipairs(call('SMEMBERS', Q .. 'h:' .. session)) do
      local id = string.match(ref, '^%d+ (.*)$')
      if not seen[id] then ids[#ids + 1] = id end
      seen[id] = true
    end
  end
  return { 1, '', ids }
else
  for _, class in ipairs(call('ZRANGE', Q .. 'index', 0, -1)) do
    for _, lane in ipairs(all_lanes(class)) do sets[#sets + 1] = Q .. 'l:' .. lane end
  end
end
table.sort(sets)
local function name(text)
  return (kind == 'd' or kind == 'e') and id_of(text) or text
end
local total = 0
for _, set in ipairs(sets) do total = total + call('ZCARD', set) end
if total <= SMALL and ARGV[4] == '' then
  local all, ids = {}, {}
  for _, set in ipairs(sets) do
    local members = call('ZRANGE', set, 0, -1, 'WITHSCORES')
    for i = 1, #members, 2 do all[#all + 1] = { tonumber(members[i + 1]), members[i] } end
  end
  if #sets > 1 then table.sort(all, function(a, b) return a[1] < b[1] end) end
  for _, one in ipairs(all) do
    ids[#ids + 1] = name(one[2])
  end
  return { 1, '', ids }
end
local at, score, last = string.match(ARGV[4], '^([^\31]*)\31([^\31]*)\31(.*)$')
local ids, cursor, begun = {}, ARGV[4], ARGV[4] == ''
for _, set in ipairs(sets) do
  if begun or set >= at or kind == 'w' or kind == 'd' or kind == 'e' then
    local from = (not begun and set == at) and tonumber(score) or '-inf'
    local skip = from ~= '-inf'
    local start = 0
    while #ids < most do
      local members = call('ZRANGEBYSCORE', set, from, '+inf', 'WITHSCORES', 'LIMIT', start, most)
      if #members == 0 then break end
      for i = 1, #members, 2 do
        if skip and tonumber(members[i + 1]) == tonumber(score) and members[i] <= last then
          -- already listed
        elseif #ids < most then
          ids[#ids + 1] = name(members[i])
          cursor = set .. '\31' .. members[i + 1] .. '\31' .. members[i]
        end
      end
      start = start + #members / 2
    end
    begun = true
  end
  if #ids >= most then return { 0, cursor, ids } end
end
return { 1, '', ids }
