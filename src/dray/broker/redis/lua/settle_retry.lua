-- settle_retry: settles failed runs of simple jobs that are to run again later, from the next outcome on.
-- uses: outcomes past_runs
-- as a function
local batch = { heads = {}, dues = {}, errors = {}, refs = {}, tasks = {}, events = {} }

-- Reads an outcome; false if it is another one.
local function read_retry(i)
  local id, run, rest = ARGV[4 * i], ARGV[4 * i + 1], ARGV[4 * i + 3]
  local due, length, from = string.match(rest, '^retry (%d+) (%d+) ()')
  if not due or tonumber(due) <= now then return false end
  local facts, header = held_run(i)
  local problem = string.sub(rest, from + length)
  header = facts and with_past(header, run, facts, 'failed', cjson.encode(short_error(problem)))
  if not header then return false end
  local before, failures, after = string.match(facts, '^(.* failures=)(%d+)(.*)$')
  local n, task, ref = #batch.heads, string.match(header, '|(.-)|'), run .. ' ' .. id
  batch.heads[n + 1] = id
  batch.heads[n + 2] = 'retrying' .. before .. failures + 1 .. after .. ' due=' .. due .. '\n' .. header
  batch.dues[n + 1], batch.dues[n + 2] = due, string.sub(header, 2, 17) .. id
  if problem ~= '' then
    local size = #batch.errors
    batch.errors[size + 1], batch.errors[size + 2] = id, problem
  end
  batch.refs[#batch.refs + 1], batch.events[#batch.events + 1] = ref, 'T' .. ref
  batch.tasks[task] = (batch.tasks[task] or 0) + 1
  if string.byte(header) ~= 112 then free_slots(header) end
  woken.due = math.min(woken.due or tonumber(due), tonumber(due))
  return true
end

while settled < #ids and read_retry(settled + 1) do
  settled = settled + 1
  seen[ARGV[4 * settled]] = 'retrying'
end
if #batch.refs == 0 then return end
many('HSET', Q .. 'head', batch.heads)
many('ZADD', Q .. 'due', batch.dues)
if #batch.errors > 0 then many('HSET', Q .. 'err', batch.errors) end
free_runs(batch)
count('retrying', #batch.refs)
events[#events + 1] = table.concat(batch.events, '\n')
joined = joined + #batch.refs - 1
