-- hand_over: hands the only ready job of a queue over to a sleeper, as the answer to the take that it offers.
-- uses: removal takers counts

-- The facts of a job that was changed before, for the taker: see take.
local function taken_facts(job, run)
  local facts = 'run=' .. run .. ' failures=' .. job.failures
  for _, name in ipairs({ 'crashes', 'suspect', 'deadline', 'memos', 'replayed' }) do
    if job[name] then facts = facts .. ' ' .. name .. '=' .. string.format('%.0f', job[name]) end
  end
  if job.class ~= job.put_class then facts = facts .. ' class=' .. job.class end
  return job.undo and facts .. '\n' .. cjson.encode(job.undo) or facts
end

-- Begins a run of a ready job.
local function begin_run(job, session)
  job.run = job.run + 1
  count_node(job, job.state, 'running')
  job.started, job.state, job.stands = now, 'running', nil
  if job.expires then set_expires(job, nil) end
  job.runs = job.runs or {}
  job.runs[#job.runs + 1] = { job.run, session, now }
  if job.runs[2] then count('second', 1) end
  use_slots(job, 1)
  index_deadline(job)
  save(job)
  note('t', job.id, job.run)
end

local hand_over

do
  -- The class of the only job that this call made ready, if no other is ready.
  local function only_ready()
    local found, made = nil, 0
    for class, joined in pairs(woken.ready) do
      if joined > 0 then found, made = class, made + joined end
    end
    return made == 1 and job_counts().ready == 1 and found
  end

  -- Gives the first job of a lane to a sleeper; false if that may not be.
  local function give_first(class, lane)
    local may_go_over, give_to_sleeper = takers()
    local ids, numbers, came_back = first_jobs(lane, 1)
    local job, body = load(ids[1]), call('HGET', Q .. 'job', ids[1])
    if job.options.rate or job.options.max_running or why_too_late(job) or job.memos or job.undo or job.was_woken
      or not may_go_over(body) then
      return false
    end
    local run = job.run + 1
    local session = give_to_sleeper(class, job.id, run, taken_facts(job, run), body)
    if not session then return false end
    job.line = tonumber(numbers[1])
    begin_run(job, session)
    lane_shift(class, job.group, lane, 1, came_back and came_back[1] or 0)
    return true
  end

  -- Called before `aftermath` by scripts that make jobs ready: put, deliver, take, sweep.
  hand_over = function()
    local class = next(woken.ready) and call('EXISTS', Q .. 'sleep') == 1 and only_ready()
    local group = class and call('ZRANGE', Q .. 'r:' .. class, 0, 0)[1]
    local lane = group and call('ZRANGE', Q .. 'g:' .. class .. '\n' .. group, 0, 0)[1]
    if not lane or not give_first(class, lane) then return end
    woken.ready[class] = 0
  end
end
