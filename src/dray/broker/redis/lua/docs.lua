-- docs: reads all documents of a kind that have not expired.
-- uses: namespace
--
-- ARGV[2] kind
-- returns name, stored form, ...
local stored, found = call('HGETALL', N .. 'doc:' .. ARGV[2]), {}
for i = 1, #stored, 2 do
  local expires = string.match(stored[i + 1], '^%d+ (%d*)\n')
  if expires == '' or now < tonumber(expires) then
    found[#found + 1], found[#found + 2] = stored[i], stored[i + 1]
  end
end
return found
