-- repair_numbers: checks and corrects the numbers of jobs per state and of slots in use.
-- uses: repair_jobs

-- Corrects a hash of numbers.
local function correct(key, truth, kind)
  local stored = call('HGETALL', Q .. key)
  for i = 1, #stored, 2 do
    local right = truth[stored[i]] or 0
    if tonumber(stored[i + 1]) ~= right then
      note_repair(kind)
      if right == 0 then call('HDEL', Q .. key, stored[i]) else call('HSET', Q .. key, stored[i], right) end
    end
    truth[stored[i]] = nil
  end
  for name, number in pairs(truth) do
    note_repair(kind)
    call('HSET', Q .. key, name, number)
  end
end

local function numbers(key)
  local stored, found = call('HGETALL', Q .. key), {}
  for i = 1, #stored, 2 do found[stored[i]] = tonumber(stored[i + 1]) end
  return function(name) return found[name] or 0 end, found
end

-- Adds the slots of a run to `truth`; removes a run that is not held.
local function count_slots(truth, session, ref)
  local function add(what) truth[what] = (truth[what] or 0) + 1 end
  local number, id = string.match(ref, '^(%d+) (.*)$')
  local job, valid = id and load(id), false
  for _, run in ipairs(job and job.runs or {}) do
    valid = valid or (run[1] == tonumber(number) and run[2] == session)
  end
  if not valid then
    note_repair('run')
    call('SREM', Q .. 'h:' .. session, ref)
    return
  end
  add('q')
  add('t:' .. job.task)
  if job.group ~= '' then add('g:' .. job.group) end
  if job.running_key ~= '' then add('k:' .. job.running_key) end
end

-- The slots in use are those of the runs held. They are counted once a round through the jobs, and when sums differ,
-- unless there are very many.
local function check_slots()
  local sessions, held, by_task, truth = call('HKEYS', Q .. 's'), 0, 0, {}
  for _, session in ipairs(sessions) do held = held + call('SCARD', Q .. 'h:' .. session) end
  local running, all = numbers('running')
  for name, number in pairs(all) do
    if string.sub(name, 1, 2) == 't:' then by_task = by_task + number end
  end
  if held > RECOUNT or (look.job and running('q') == held and by_task == held) then return end
  for _, session in ipairs(sessions) do
    for _, ref in ipairs(call('SMEMBERS', Q .. 'h:' .. session)) do count_slots(truth, session, ref) end
  end
  correct('running', truth, 'slot')
  if fixed.slot then
    woken.all = true
    for what in pairs(all) do unblock_cause(what) end
  end
end

-- Nodes of flows and timed wakes, if this script saw all jobs.
local function correct_flows()
  for owner, states in pairs(nodes) do correct('flow:' .. owner, states, 'count') end
  if wakes == tonumber(call('HGET', Q .. 'n', 'wakes') or 0) then return end
  note_repair('count')
  if wakes == 0 then call('HDEL', Q .. 'n', 'wakes') else call('HSET', Q .. 'n', 'wakes', wakes) end
end

-- Counts of jobs: exact if this script saw all jobs, or when a round is over and there are few. A count cannot be more
-- than the place holds.
local function check_counts()
  local seen_all, exact = 0, tally
  for _, number in pairs(tally) do seen_all = seen_all + number end
  if not whole or seen_all - (tally.second or 0) ~= call('HLEN', Q .. 'job') then
    local of, due, ended = numbers('counts'), call('ZCARD', Q .. 'due'), call('ZCARD', Q .. 'ended')
    if of('retrying') <= due and of('dead') + of('cancelled') <= ended and look.job then return end
    if call('HLEN', Q .. 'job') > RECOUNT then return end
    exact = {}
    for _, id in ipairs(call('HKEYS', Q .. 'job')) do job_check.count_job(exact, load(id)) end
  else
    correct_flows()
  end
  local counted_ones = {}
  for name, number in pairs(exact) do
    if is_counted(name) then counted_ones[name] = number end
  end
  correct('counts', counted_ones, 'count')
end
