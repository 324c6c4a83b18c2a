-- repair_jobs: checks and repairs jobs one by one: their place, runs, dependencies, times, offer and key.
-- uses: repair_lanes repair_parts
local job_check = {}

function job_check.number_of(job)
  if not job.line or job.line == 0 then
    go_last(job)
    save(job)
  end
end

function job_check.is_there(job)
  local kind = place[job.state]
  if kind == 'held' then return true end
  if kind == 'waiting' then return call('ZSCORE', Q .. 'waiting', job.id) end
  if kind == 'ready' then return lane_check.stands_in_lane(job) end
  return call('ZSCORE', Q .. kind, member(job))
end

function job_check.repair_place(job)
  local kind = place[job.state]
  if job.wake and kind == 'waiting' and not call('ZSCORE', Q .. 'due', member(job)) then
    note_repair('place')
    call('ZADD', Q .. 'due', job.wake, member(job))
  end
  if not job_check.is_there(job) then
    note_repair('place')
    if kind == 'ready' then job_check.number_of(job) end
    if kind == 'due' and not job.due then job.due = now end
    if kind == 'ended' and not job.finished then job.finished = now end
    save(job)
    enter(job)
  end
  if kind == 'ready' and not lane_check.lane_is_listed(job) then lane_check.relist_lane(lane_of(job)) end
end

function job_check.holds(session, ref)
  return call('HEXISTS', Q .. 's', session) == 1, call('SISMEMBER', Q .. 'h:' .. session, ref) == 1
end

-- The session that holds a run must know it. Returns true if a run without a live session was ended.
function job_check.repair_run(job, run)
  local ref = run[1] .. ' ' .. job.id
  local alive, known_there = job_check.holds(run[2], ref)
  if job.state ~= 'running' then
    note_repair('run')
    call('SREM', Q .. 'h:' .. run[2], ref)
  elseif not alive then
    note_repair('run')
    job_check.number_of(job)
    crash(job, run[1], true, 0)
    return true
  elseif not known_there then
    note_repair('run')
    call('SADD', Q .. 'h:' .. run[2], ref)
  end
end

-- A running job without a run becomes ready, or cancelled if asked.
function job_check.repair_runs(job)
  for _, run in ipairs(job.runs or {}) do
    if job_check.repair_run(job, run) then return end
  end
  if job.runs and job.state ~= 'running' then
    job.runs = nil
    save(job)
  elseif job.state == 'running' and not job.runs then
    note_repair('run')
    job.suspect = group_after(job.suspect, 0)
    job_check.number_of(job)
    if job.cancel then finish(job, 'C', 'cancelled', job.cancel) else back_in_line(job, 'X') end
  end
end

function job_check.repair_waiting(job)
  local said = job.suspended and cjson.decode(job.suspended) or {}
  if job.suspended and not not_started[job.state] then
    note_repair('record')
    end_suspension(job)
    save(job)
  elseif job.state == 'waiting' and not job.waits and not (said.events or said.parked) then
    note_repair('dependency')
    enqueue(job, job.suspended and 'W' or 'R', not job.suspended and job.options.due or nil)
  elseif job.waits and job.state ~= 'waiting' then
    note_repair('dependency')
    stop_waiting(job)
    save(job)
  end
end

function job_check.repair_deadline(job)
  local length = job.options.deadline
  if job.undo or finished[job.state] then return end
  if (job.deadline ~= nil) ~= (length ~= nil) then
    note_repair('record')
    job.deadline = length and math.max(now, job.due or job.options.due or 0) + length
    save(job)
    index_deadline(job)
  elseif job.deadline and not_started[job.state]
    and tonumber(call('ZSCORE', Q .. 'deadline', member(job)) or -1) ~= job.deadline then
    note_repair('place')
    index_deadline(job)
  end
end

function job_check.repair_expiry(job)
  if job.expires and not call('ZSCORE', Q .. 'ttl', member(job)) then
    note_repair('place')
    call('ZADD', Q .. 'ttl', job.expires, member(job))
  end
end

function job_check.repair_offer(job)
  if not job.offered then return end
  if job.state ~= 'running' then
    note_repair('offer')
    withdraw_offer(job)
  elseif not call('ZSCORE', Q .. 'offer', job.id) then
    note_repair('offer')
    call('ZADD', Q .. 'offer', now, job.id)
  end
end

function job_check.repair_key(job)
  local key = job.options.key
  if not key or job.options.key_ttl or finished[job.state] then return end
  local id = key_holder(key)
  if id == job.id then return end
  local other = id and load(id)
  if other and other.options.key == key and not finished[other.state] then return end
  note_repair('key')
  take_key(key, job.id)
end

function job_check.repair_job(job)
  if not place[job.state] then
    note_repair('place')
    job.state = job.finished and 'dead' or 'ready'
    save(job)
  end
  job_check.repair_runs(job)
  job_check.repair_waiting(job)
  job_check.repair_deadline(job)
  job_check.repair_place(job)
  job_check.repair_offer(job)
  job_check.repair_key(job)
  job_check.repair_expiry(job)
  repair_parts(job)
end

function job_check.count_job(map, job)
  map[job.state] = (map[job.state] or 0) + 1
  if #(job.runs or {}) > 1 then map.second = (map.second or 0) + 1 end
end

-- Jobs that are ready for the first time have no head, so their bodies are read. If these are large, fewer are read
-- next time.
local made_up, whole, tally = {}, look.job == nil, {}
local nodes, wakes = {}, 0 -- of flows: owner -> state -> number; waiting jobs that a moment wakes
function job_check.check_jobs()
  local step = look.step or most
  local ids = stretch('HSCAN', 'job', step, true)
  whole = whole and look.job == nil
  local bytes = preload(ids)
  for _, id in ipairs(ids) do
    local job = load(id)
    job_check.repair_job(job)
    job_check.count_job(tally, job)
    if job.wake then wakes = wakes + 1 end
    if job.options.node then
      local flow = nodes[job.options.owner] or {}
      nodes[job.options.owner], flow[job.state] = flow, (flow[job.state] or 0) + 1
    end
    if string.find(id, '^[^:]') or string.find(id, '^::') then made_up[#made_up + 1] = id end
  end
  look.step = bytes > LARGE and math.max(10, math.floor(step * LARGE / bytes)) or nil
end

-- A head without its body cannot run: the job dies and is forgotten.
function job_check.check_heads()
  local heads = stretch('HSCAN', 'head', most / 4)
  for i = 1, #heads, 2 do
    if call('HEXISTS', Q .. 'job', heads[i]) == 0 then
      local job = load(heads[i])
      note_repair('record')
      job_check.repair_job(job)
      if not finished[job.state] then bury(job, 'undecodable: its body is gone') end
      forget(job)
    end
  end
end
