-- release: a session ends in one queue; what it holds here is free now.
-- uses: base job line moves
--
-- ARGV[3] session  [4] epoch: a later opening of the same name is left alone  [5] 1 if what it held is suspect
-- ARGV[6..] runs that crashed alone: "run id"
-- returns {freed, aftermath}
local session, blamed = ARGV[3], {}
for i = 6, #ARGV do blamed[ARGV[i]] = true end
local stored = call('HGET', Q .. 's', session)
if stored and cmsgpack.unpack(stored).e > tonumber(ARGV[4]) then return { 0, { 0, {}, {} } } end
local held = call('SMEMBERS', Q .. 'h:' .. session)
table.sort(held, function(one, other)
  local n, a = string.match(one, '^(%d+) (.*)$')
  local m, b = string.match(other, '^(%d+) (.*)$')
  if a ~= b then
    local first, second = load(a), load(b)
    if first and second and first.stamp ~= second.stamp then
      return tonumber(first.stamp) < tonumber(second.stamp)
    end
    return a < b
  end
  return tonumber(n) < tonumber(m)
end)
for _, ref in ipairs(held) do
  local run, id = string.match(ref, '^(%d+) (.*)$')
  local job = load(id)
  hint = job and string.format('1%016d', ARGV[4]) .. string.sub(member(job), 1, 16)
  if job then crash(job, tonumber(run), ARGV[5] == '1', blamed[ref]) end
end
call('DEL', Q .. 'h:' .. session, Q .. 'v:' .. session, Q .. 'heard:' .. session)
call('HDEL', Q .. 's', session)
call('HDEL', Q .. 't', session)
call('PUBLISH', channel('s', session), '1')
woken.all = true
return { #held, aftermath() }
