-- feed: entries after a number, one per step that did something in this queue.
-- uses: base
--
-- ARGV[3] number of the last entry read  [4] how many at most; 0 tells only where the feed stands
-- returns {newest number, oldest number, entries as XRANGE gives them}
local newest = tonumber(call('HGET', Q .. 'n', 'feed') or 0)
local first = call('XRANGE', Q .. 'feed', '-', '+', 'COUNT', 1)[1]
local oldest = first and tonumber(string.match(first[1], '^%d+')) or newest + 1
if ARGV[4] == '0' then return { newest, oldest, {} } end
local after = tonumber(ARGV[3])
if after > newest or after + 1 < oldest then after = math.min(after, oldest - 1) end
return { newest, oldest, call('XRANGE', Q .. 'feed', (after + 1) .. '-0', '+', 'COUNT', ARGV[4]) }
