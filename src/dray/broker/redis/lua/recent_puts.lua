-- recent_puts: lists the jobs that were put last, the newest first, as far as the feed reaches.
-- uses: prelude
--
-- ARGV[3] the newest time to list in ms, '' for all  [4] about how many ids
-- returns {the time down to which the list is complete (0: from the first job on), the oldest time that the feed covers
--         completely (0: all), {at, id, at, id, ...}}
--
-- Entries are numbered without gaps, so a binary search finds the first one.
local ENTRIES = 1000
local before, most = tonumber(ARGV[3]), tonumber(ARGV[4])
local newest = tonumber(call('HGET', Q .. 'n', 'feed') or 0)
local first = call('XRANGE', Q .. 'feed', '-', '+', 'COUNT', 1)[1]
if not first then
  local known = call('EXISTS', Q .. 'job') == 1 and now + 1 or 0
  return { known, known, {} }
end

local function time_of(entry) return tonumber(entry[2][2]) end

local oldest = tonumber(string.match(first[1], '^%d+'))
local horizon = oldest > 1 and time_of(first) + 1 or 0
local low, high = oldest, newest
while before and low < high do
  local middle = math.ceil((low + high) / 2)
  local entry = call('XRANGE', Q .. 'feed', middle .. '-0', '+', 'COUNT', 1)[1]
  if entry and time_of(entry) <= before then low = middle else high = middle - 1 end
end

local puts, at, looked, number = {}, nil, 0, high
while number >= oldest do
  local entries = call('XREVRANGE', Q .. 'feed', number .. '-0', '-', 'COUNT', 100)
  if #entries == 0 then break end
  for _, entry in ipairs(entries) do
    local time = time_of(entry)
    if at and time ~= at and (#puts >= 2 * most or looked >= ENTRIES) then return { at, horizon, puts } end
    looked = looked + 1
    at = time
    local ids = {}
    if not before or time <= before then
      for id in string.gmatch('\n' .. entry[2][4], '\np%d+ ([^\n]*)') do ids[#ids + 1] = id end
    end
    for i = #ids, 1, -1 do puts[#puts + 1], puts[#puts + 2] = entry[2][2], ids[i] end
  end
  number = tonumber(string.match(entries[#entries][1], '^%d+')) - 1
end
return { horizon, horizon, puts }
