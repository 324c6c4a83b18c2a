-- doc: reads a document, or writes or deletes it if its version is the expected one.
-- uses: namespace
--
-- `doc:KIND` HASH name -> "version expires\nvalue"; `docttl` ZSET "kind\nname" -> expires; `versions` counts all writes
-- `intent`   HASH token -> jobs to be put because this document was written (see put.py)
--
-- ARGV[2] kind  [3] name  [4] read | write | delete  [5] expected version or ''  [6] ttl or ''  [7] value
-- ARGV[8] token or ''  [9] jobs
-- returns {1 if written, stored form or false}
local key, name = N .. 'doc:' .. ARGV[2], ARGV[3]

local function live()
  local stored = call('HGET', key, name)
  if not stored then return false, 0 end
  local version, expires = string.match(stored, '^(%d+) (%d*)\n')
  if expires ~= '' and now >= tonumber(expires) then return false, 0 end
  return stored, tonumber(version)
end

if ARGV[4] == 'read' then return { 0, (live()) } end
local stored, version = live()
if ARGV[5] ~= '' and tonumber(ARGV[5]) ~= version then return { 0, stored } end
if ARGV[8] ~= '' then call('HSET', N .. 'intent', ARGV[8], ARGV[9]) end
local number = call('INCR', N .. 'versions')
if number == 1 then number = start_at_now('versions') end
call('ZREM', N .. 'docttl', ARGV[2] .. '\n' .. name)
if ARGV[4] == 'delete' then
  call('HDEL', key, name)
  return { 1, false }
end
local expires = ARGV[6] ~= '' and string.format('%.0f', now + tonumber(ARGV[6])) or ''
call('HSET', key, name, string.format('%.0f', number) .. ' ' .. expires .. '\n' .. ARGV[7])
if expires ~= '' then call('ZADD', N .. 'docttl', expires, ARGV[2] .. '\n' .. name) end
return { 1, (live()) }
