-- feed: reads feed entries after a number. Every step that changed something in this queue is one entry.
-- uses: prelude
--
-- ARGV[3] number of the last entry read  [4] limit; 0 returns only the position of the feed
-- returns {newest number, oldest number, base, entries as in XRANGE: their numbers lack `base`}
local first = call('XRANGE', Q .. 'feed', '-', '+', 'COUNT', 1)[1]
local n = call('HMGET', Q .. 'n', 'feed', 'base')
local newest, base = tonumber(n[1] or 0), tonumber(n[2] or 0)
local oldest = first and tonumber(string.match(first[1], '^%d+')) or newest + 1
if ARGV[4] == '0' then return { base + newest, base + oldest, base, {} } end
local after = math.max(0, tonumber(ARGV[3]) - base)
if after > newest or after + 1 < oldest then after = math.min(after, oldest - 1) end
local start = string.format('%.0f-0', after + 1)
return { base + newest, base + oldest, base, call('XRANGE', Q .. 'feed', start, '+', 'COUNT', ARGV[4]) }
