-- deliver: delivers outbox messages to jobs of this queue. Repeating it has no effect.
-- uses: durable hand_over
--
-- ARGV[3..] per message: dependant, dependency, how the dependency ended ("parent ..." to a job that it calls, "revived":
--         it is unfinished again), a name of the message
-- returns {number of messages that had an effect, aftermath, pairs (dependency, dependant) of revived jobs, which must
--         be registered and looked at}
local effects, revived = 0, {}
local counts_as_done = { run = true, follow = true, first = true }

-- Cancels a job because one it waits for ended badly. It remembers what to wait for if that one is replayed.
local function orphan(job, dependency, ended)
  local depends = waits.list(job)
  finish(job, 'C', 'cancelled', public_id(dependency) .. ', which it waits for, is ' .. ended)
  if finished[job.state] then job.orphaned, job.depends = dependency, depends end
  save(job)
end

-- True for a message that was posted before one that revived the job, which has looked at all it waits for since.
local function is_stale(job, message)
  local queue, number = string.match(message, '^(.*) (%d+)$')
  for _, one in ipairs(queue and job.revived or {}) do
    local other, later = string.match(one, '^(.*) (%d+)$')
    if other == queue and tonumber(number) < tonumber(later) then return true end
  end
  return false
end

local function dependency_ended(job, dependency, ended, message)
  local rule = job.options.orphan
  local released = job.suspended or ended == 'succeeded' or counts_as_done[rule]
  if not waits.has(job, dependency) or (rule == 'wait' and not released) or is_stale(job, message) then return end
  effects = effects + 1
  if not released then return orphan(job, dependency, ended) end
  forgotten[#forgotten + 1], forgotten[#forgotten + 2] = dependency, job.id
  waits.drop(job, dependency)
  if job.suspended then
    if not job.waits or not cjson.decode(job.suspended).all_jobs then durable.wake(job) end
  elseif not job.waits or (rule == 'first' and ended == 'succeeded') then
    stop_waiting(job)
    enqueue(job, 'R', job.options.due)
  end
end

-- True if the message was delivered before. The newest are remembered.
local function was_revived_by(job, message)
  local seen = job.revived or {}
  for _, one in ipairs(seen) do
    if one == message then return true end
  end
  seen[#seen + 1] = message
  if #seen > 8 then table.remove(seen, 1) end
  job.revived = seen
  return false
end

-- An orphan also waits for this job, when it is revived because of another one.
local function add_dependency(job, dependency)
  for _, other in ipairs(job.depends or {}) do
    if other == dependency then return end
  end
  job.depends = job.depends or {}
  job.depends[#job.depends + 1] = dependency
  save(job)
end

local function revive(job, dependency, message)
  local follows = finished[job.state] and job.options.orphan == 'follow'
  if job.orphaned and job.orphaned ~= dependency and not follows then return add_dependency(job, dependency) end
  if not (follows or job.orphaned) or other_key_holder(job) or was_revived_by(job, message) then return end
  effects = effects + 1
  claim_key(job)
  local depends = follows and { dependency } or job.depends
  for _, other in ipairs(depends) do revived[#revived + 1], revived[#revived + 2] = other, job.id end
  durable.begin_again(job)
  waits.set(job, depends)
  move(job, 'F', 'waiting')
  tell_revived(job)
end

for i = 3, #ARGV, 4 do
  local job, dependency, ended = load(ARGV[i]), ARGV[i + 1], ARGV[i + 2]
  local parent = string.match(ended, '^parent (.*)$')
  if job and parent then durable.cancel(job, public_id(dependency) .. ', which called it, is ' .. parent, false)
  elseif job and ended == 'revived' then revive(job, dependency, ARGV[i + 3])
  elseif job then dependency_ended(job, dependency, ended, ARGV[i + 3])
  end
end
hand_over()
return { effects, aftermath(), revived }
