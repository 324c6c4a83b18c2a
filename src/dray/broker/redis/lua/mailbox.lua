-- mailbox: reads messages of one name from the mailbox of a job (`box:ID`, see durable).
-- uses: prelude
--
-- ARGV[3] id  [4] name  [5] number after which to begin  [6] limit
-- returns per message: number, id, body
local key, name, found = Q .. 'box:' .. ARGV[3], ARGV[4], {}
local n = call('HMGET', key, name .. '\n#', name .. '\n<')
local first = math.max(tonumber(ARGV[5]), tonumber(n[2] or 0)) + 1
for number = first, math.min(tonumber(n[1] or 0), first + tonumber(ARGV[6]) - 1) do
  local one = call('HMGET', key, name .. '\n@' .. number, name .. '\n' .. number)
  found[#found + 1], found[#found + 2], found[#found + 3] = number, one[1], one[2]
end
return found
