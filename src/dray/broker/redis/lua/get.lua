-- get: reads jobs of one queue, and registers a watcher for the unfinished ones in the same step.
-- uses: prelude
--
-- ARGV[3] watcher or ''   ARGV[4..] ids
-- returns {now, per id: false if unknown, else {head or '', body, result or false, error or false,
--         progress of its runs: run, bytes, ..., and of a job that waits for many: these, what it is suspended for}}
local watcher = ARGV[3]

-- The state of a job and the numbers of its runs. A damaged head is shown as unreadable: it must not keep other jobs
-- from being read.
local function state_and_runs(head)
  if not head then return 'ready', {} end
  local state, run = string.match(head, '^(%a+) run=(%d+) ')
  local more = string.match(head, '\nruns=([^\n]*)')
  local readable, runs = pcall(cjson.decode, more or '[]')
  local numbers = state == 'running' and { run } or {}
  for i, one in ipairs(readable and more and type(runs) == 'table' and runs or {}) do
    numbers[i] = type(one) == 'table' and tonumber(one[1]) or 0
  end
  return state or '', numbers
end

local function read(id, body)
  local head, progress = call('HGET', Q .. 'head', id), {}
  local state, runs = state_and_runs(head)
  if watcher ~= '' and state ~= 'succeeded' and state ~= 'dead' and state ~= 'cancelled' then
    call('SADD', Q .. 'w:' .. id, watcher)
    call('SADD', Q .. 'ends', id)
  end
  for _, run in ipairs(runs) do
    local report = call('HGET', Q .. 'prog', run .. ' ' .. id)
    if report then progress[#progress + 1], progress[#progress + 2] = tonumber(run), report end
  end
  local result = state == 'succeeded' and (call('HGET', Q .. 'res', id) or call('GET', Q .. 'res:' .. id))
  local row = { head or '', body, result or false, head and call('HGET', Q .. 'err', id), progress }
  if head and string.find(head, '\nwaits="many"', 1, true) then
    row[6], row[7] = call('SMEMBERS', Q .. 'waits:' .. id), call('GET', Q .. 'susp:' .. id)
  end
  return row
end

local found = { now }
for i = 4, #ARGV do
  local body = call('HGET', Q .. 'job', ARGV[i])
  found[#found + 1] = body and read(ARGV[i], body) or false
end
return found
