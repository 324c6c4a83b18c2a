-- free: some of what an ended session holds in one queue is free now. `release` does the rest, once it is little.
-- uses: base job line moves
--
-- ARGV[3] session  [4] epoch: a later opening of the same name is left alone  [5] 1 if what it held is suspect
-- ARGV[6] how many runs at most
-- returns {freed, aftermath}
local session = ARGV[3]
local stored = call('HGET', Q .. 's', session)
if stored and cmsgpack.unpack(stored).e > tonumber(ARGV[4]) then return { 0, { 0, {}, {} } } end
local freed = call('SPOP', Q .. 'h:' .. session, ARGV[6])
for _, ref in ipairs(freed) do
  local run, id = string.match(ref, '^(%d+) (.*)$')
  local job = load(id)
  if job then
    hint = string.format('1%016d', ARGV[4]) .. string.sub(member(job), 1, 16)
    crash(job, tonumber(run), ARGV[5] == '1', false)
  end
end
return { #freed, aftermath() }
