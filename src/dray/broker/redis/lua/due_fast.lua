-- due_fast: fall_due() makes plain and simple jobs ready whose time has come: new ones and retried ones.
-- uses: job_text joining tally
-- as a function
--
-- due_fast() returns fall_due and add_fallen. fall_due returns nil if nothing is due; false, with nothing changed, if a
-- due job is full or its lane is held back; else {moved: number of jobs, from: state -> number, events}. Lanes are
-- written before `due` is left.

-- The head in which a job is ready, in two parts around the number in line, and the state that it leaves; nil if it is
-- not a simple job that waits for its time. `header` has what follows the facts.
local function ready_parts(head)
  local state, run, failures, started, header =
    string.match(head or '', '^(%a+) run=(%d+) line=%d+ failures=(%d+) started=(%d+) due=%d+(\n.*)$')
  if not state or string.byte(header, 2) == 102 then return nil end
  local rest = string.find(header, '\n', 2, true)
  if rest and not only_past(string.sub(header, rest)) then return nil end
  return 'ready run=' .. run .. ' line=', ' failures=' .. failures .. ' started=' .. started .. header, state, header
end

-- Adds a job to `found`; false if it is not simple.
local function add_due(found, id, head, line)
  local before, after, state, header = ready_parts(head)
  if not before then return false end
  local class, options = string.match(header, '^\n.[%d+]+ ([^ \n]+) ?([^\n]*)')
  sort_job(found.lanes, class, string.byte(header, 2), options, line .. ' ' .. id)
  local size = #found.heads
  found.heads[size + 1], found.heads[size + 2] = id, before .. line .. after
  found.events[#found.events + 1], found.from[state] = 'P0 ' .. id, (found.from[state] or 0) + 1
  return true
end

local function fall_due(limit)
  local due = call('ZRANGEBYSCORE', Q .. 'due', '-inf', at, 'LIMIT', 0, limit)
  if #due == 0 then return nil end
  if #due > 3000 then return false end
  local ids, found = {}, { lanes = { said = {} }, heads = {}, events = {}, from = {}, moved = #due }
  for i, text in ipairs(due) do ids[i] = string.sub(text, 17) end
  local line = tonumber(call('HGET', Q .. 'n', 'line') or 0)
  for i, head in ipairs(call('HMGET', Q .. 'head', unpack(ids))) do
    if not add_due(found, ids[i], head, line + i) then return false end
  end
  if any_blocked(found.lanes) then return false end
  many('HSET', Q .. 'head', found.heads)
  write_lanes(found.lanes, true)
  call('HINCRBY', Q .. 'n', 'line', #ids)
  call('ZREMRANGEBYRANK', Q .. 'due', 0, #due - 1)
  return found
end

-- Adds the events and counts of simple jobs that fell due. The jobs that a take took itself need no other worker.
local function add_fallen(fallen, taken)
  for _, event in ipairs(fallen.events) do events[#events + 1] = event end
  for state, jobs in pairs(fallen.from) do count(state, -jobs) end
  for class, jobs in pairs(taken or {}) do woken.ready[class] = (woken.ready[class] or 0) - jobs end
end

return fall_due, add_fallen
