-- release: ends a session in one queue and frees the runs it holds there; of very many runs only some at a time.
-- uses: crashes removal
--
-- ARGV[3] session  [4] epoch: a later opening of the same name is left alone  [5] 1 if its jobs are suspect
-- ARGV[6] '', or a limit: frees so many runs and does not end the session yet
-- ARGV[7..] runs that crashed alone: "run id"
-- returns {number of freed runs, aftermath}
local session, limit, blamed = ARGV[3], ARGV[6], {}
for i = 7, #ARGV do blamed[ARGV[i]] = true end
local stored = call('HGET', Q .. 's', session)
if stored and tonumber(string.match(stored, '^epoch=(%d+)')) > tonumber(ARGV[4]) then return { 0, { 0, {}, {} } } end
local held = limit == '' and call('SMEMBERS', Q .. 'h:' .. session) or call('SPOP', Q .. 'h:' .. session, limit)
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
  if job then crash(job, tonumber(run), ARGV[5] == '1' or blamed[ref], blamed[ref] and 1 or 0) end
end
if limit ~= '' then return { #held, aftermath() } end
call('DEL', Q .. 'h:' .. session, Q .. 'v:' .. session, Q .. 'heard:' .. session)
call('HDEL', Q .. 's', session)
call('HDEL', Q .. 't', session)
call('PUBLISH', channel('s', session), '1')
woken.all = true
return { #held, aftermath() }
