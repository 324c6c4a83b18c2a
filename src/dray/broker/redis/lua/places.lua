-- places: every way a job changes its place, as in dray.broker.memory.store. The new place is written before the old
-- one is left, except where both are the same kind of place.
-- uses: lanes unique_keys retention
local NEVER = 2 ^ 51
local EXPIRED, OVERDUE = 'expired: it was not started within its ttl', 'deadline: it was not finished in time'
local place = {
  waiting = 'waiting', scheduled = 'due', retrying = 'due', ready = 'ready', running = 'held',
  succeeded = 'ended', dead = 'ended', cancelled = 'ended',
}

local function forget_at(job)
  if job.state == 'dead' then return job.finished + (dead_ttl == '-1' and NEVER or tonumber(dead_ttl)) end
  local keep = tonumber(done_ttl)
  if job.state == 'succeeded' and job.options.once then keep = math.max(keep, job.options.once) end
  return job.finished + keep
end

local function enter(job)
  local kind = place[job.state]
  if kind == 'waiting' then call('ZADD', Q .. 'waiting', job.stamp, job.id)
  elseif kind == 'due' then
    call('ZADD', Q .. 'due', job.due, member(job))
    woken.due = math.min(woken.due or job.due, job.due)
  elseif kind == 'ready' then
    declare(job)
    lane_add(job)
  elseif kind == 'ended' then call('ZADD', Q .. 'ended', string.format('%.0f', forget_at(job)), member(job))
  end
end

local function leave(job, state)
  local kind = place[state]
  if kind == 'waiting' then call('ZREM', Q .. 'waiting', job.id)
  elseif kind == 'due' then call('ZREM', Q .. 'due', member(job))
  elseif kind == 'ready' then lane_remove(job)
  elseif kind == 'ended' then call('ZREM', Q .. 'ended', member(job))
  end
end

-- `deadline` lists the jobs that do not run: a held run goes on past its deadline.
local function index_deadline(job)
  if not job.deadline then return end
  if not_started[job.state] then call('ZADD', Q .. 'deadline', job.deadline, member(job))
  else call('ZREM', Q .. 'deadline', member(job))
  end
end

-- `flow:OWNER` HASH state -> number of nodes of a flow in this queue.
local function count_node(job, from, to)
  if not job.options.node then return end
  local key = Q .. 'flow:' .. job.options.owner
  if from and call('HINCRBY', key, from, -1) == 0 then call('HDEL', key, from) end
  if to then call('HINCRBY', key, to, 1) end
end

-- A waiting job is woken then in any case. `n` counts such members of `due`.
local function set_wake(job, moment)
  call('ZADD', Q .. 'due', moment, member(job))
  call('HINCRBY', Q .. 'n', 'wakes', 1)
  woken.due = math.min(woken.due or moment, moment)
  job.wake = moment
end

-- The job is not suspended any more. A parked one has a reason for it.
local function end_suspension(job)
  if not job.suspended then return end
  if job.wake then
    call('ZREM', Q .. 'due', member(job))
    if call('HINCRBY', Q .. 'n', 'wakes', -1) == 0 then call('HDEL', Q .. 'n', 'wakes') end
  end
  if string.find(job.suspended, '"many":', 1, true) then call('DEL', Q .. 'susp:' .. job.id) end
  job.suspended, job.wake, job.reason = nil, nil, nil
end

local function move(job, kind, to, run)
  local from = job.state
  count_node(job, from, to)
  job.state = to
  if from and place[from] == place[to] then
    leave(job, from)
    enter(job)
  else
    enter(job)
    if from then leave(job, from) end
  end
  index_deadline(job)
  if from then count(from, -1) end
  count(to, 1)
  save(job)
  note(kind, job.id, run)
end

local function set_expires(job, moment)
  if moment then call('ZADD', Q .. 'ttl', moment, member(job))
  elseif job.expires then call('ZREM', Q .. 'ttl', member(job))
  end
  job.expires = moment
end

-- The next number in line: the job joins behind all others.
local function go_last(job)
  job.line, job.is_last = call('HINCRBY', Q .. 'n', 'line', 1), true
end

-- Makes a job ready, at the end of the line, or scheduled until its due time.
local function enqueue(job, kind, due, run)
  if due and due > now then
    job.due = due
    set_expires(job, nil)
    local state = job.failures > 0 and 'retrying' or 'scheduled'
    if job.suspended then -- its sleep is moved
      state = job.state
      job.suspended = string.gsub(job.suspended, '"until":%d+', '"until":' .. string.format('%.0f', due))
    end
    return move(job, kind, state, run)
  end
  end_suspension(job)
  if job.options.ttl and job.run == 0 then
    set_expires(job, (due and kind == 'P' and due or now) + job.options.ttl)
  end
  job.due = nil
  go_last(job)
  move(job, kind, 'ready', run)
end

-- The reason why a job that does not run must die now, or nil.
local function why_too_late(job)
  if job.expires and now >= job.expires then return EXPIRED end
  return is_overdue(job) and OVERDUE or nil
end
