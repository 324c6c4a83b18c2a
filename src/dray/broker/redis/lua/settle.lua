-- settle: records the outcomes of runs of one queue.
-- uses: crashes durable
--
-- ARGV[3] session
-- ARGV[4..] per outcome: id, run, result with '=' before it or '', rest. The rest is '' for a success without an error,
--          else "<kind> <at> <length of reason> <reason><error>"; kinds: succeeded, retry, dead, cancelled, give_back,
--          crashed (its <at>: the number of jobs in the process that died), suspended (the result is "=<a> <b> ", a bytes
--          of JSON that say what it waits for, b bytes with its jobs too if they are many, and a JSON list of its jobs
--          that have not ended)
-- returns {answers, aftermath}; per outcome: verdict (accepted, already, refused) and state ('' unknown);
--          answers 1: all were accepted as successes
local answers = {}

local how_ended = {
  succeeded = 'succeeded', cancelled = 'cancelled', give_back = 'given_back', suspended = 'suspended',
}
local ends_undo = { succeeded = true, dead = true, cancelled = true }

local function succeed(job, run, result)
  local results = {}
  call('HDEL', Q .. 'res', job.id)
  call('DEL', Q .. 'res:' .. job.id)
  local ttl = job.options.owner and '' or string.format('%.0f', job.options.result_ttl or result_ttl)
  keep_result(results, job.id, ttl, result)
  if #results > 0 then many('HSET', Q .. 'res', results) end
  finish(job, 'S', 'succeeded', nil, run)
end

-- Looks whether what the job waits for is there; then it waits, sleeps or is ready.
local function suspend(job, run, outcome, text)
  local length, more, from = string.match(text, '^=(%d+) (%d+) ()')
  local stored, rest = string.sub(text, from, from + length - 1), from + length
  local said, missing = cjson.decode(stored), cjson.decode(string.sub(text, rest + more))
  local until_, jobs_ = said['until'], said.many or said.jobs and #said.jobs or 0
  local come = jobs_ > 0 and (#missing == 0 or (not said.all_jobs and #missing < jobs_))
  job.suspect = nil
  if come or (until_ and until_ <= now) or durable.has_news(job, said.events) then return enqueue(job, 'Z', nil, run) end
  job.suspended = stored
  if not (said.events or said.parked or jobs_ > 0) then
    job.due = until_
    return move(job, 'Z', outcome.problem ~= '' and 'retrying' or 'scheduled', run)
  end
  if said.many then call('SET', Q .. 'susp:' .. job.id, string.sub(text, rest, rest + more - 1)) end
  waits.set(job, missing)
  job.reason = said.parked and outcome.reason ~= '' and outcome.reason or nil
  if until_ then set_wake(job, until_) end
  move(job, 'Z', 'waiting', run)
end

local function conclude(job, run, outcome, result)
  local kind, reason = outcome.kind, outcome.reason
  if kind == 'crashed' then return crash(job, run, true, outcome.at or 1, outcome.problem) end
  end_run(job, run, job.cancel and 'cancelled' or how_ended[kind] or 'failed', outcome.problem)
  if job.undo and (job.cancel or ends_undo[kind]) then
    end_undo(job, job.cancel or (kind == 'dead' and reason ~= '' and reason or nil), run)
  elseif job.cancel or kind == 'cancelled' then
    finish(job, 'C', 'cancelled', job.cancel or (reason ~= '' and reason or 'cancelled'), run)
  elseif kind == 'succeeded' then succeed(job, run, result)
  elseif kind == 'dead' then
    job.failures = job.failures + 1
    bury(job, reason ~= '' and reason or 'failed', run)
  elseif job.runs then note('E', job.id, run)
  elseif kind == 'give_back' then back_in_line(job, 'G', run)
  elseif kind == 'suspended' and not is_overdue(job) then suspend(job, run, outcome, result)
  elseif kind == 'suspended' then bury(job, OVERDUE, run)
  else
    job.failures = job.failures + 1
    if is_overdue(job) then bury(job, OVERDUE, run) else enqueue(job, 'T', outcome.at, run) end
  end
end

local function read_outcome(rest)
  if rest == '' then return { kind = 'succeeded', reason = '', problem = '' } end
  local kind, moment, length, from = string.match(rest, '^([%a_]+) (%d*) (%d+) ()')
  local ends = from + tonumber(length)
  return {
    kind = kind, at = tonumber(moment), reason = string.sub(rest, from, ends - 1), problem = string.sub(rest, ends),
  }
end

-- Records one outcome. Returns the verdict and the state of the job.
local function settle_one(id, number, result, rest)
  local run, job = tonumber(number), load(id)
  for _, one in ipairs(job and job.runs or {}) do
    if one[1] == run and one[2] == session then
      local outcome = read_outcome(rest)
      job.settled = run
      if outcome.problem ~= '' then call('HSET', Q .. 'err', id, outcome.problem) end
      conclude(job, run, outcome, result)
      save(job)
      return 'accepted', job.state
    end
  end
  call('SREM', Q .. 'v:' .. session, number .. ' ' .. id)
  return job and job.settled == run and 'already' or 'refused', job and job.state or ''
end

local function settle_next()
  settled = settled + 1
  local place = 4 * settled
  seen[ARGV[place]] = seen[ARGV[place]] or ''
  answers[2 * settled - 1], answers[2 * settled] =
    settle_one(ARGV[place], ARGV[place + 1], ARGV[place + 2], ARGV[place + 3])
end

while settled < #ids do
  settle_next()
  settle_simple()
end
for cause in pairs(freed or {}) do unblock_cause(cause) end
for i, id in ipairs(ids) do
  if not answers[2 * i] then answers[2 * i - 1], answers[2 * i] = 'accepted', seen[id] end
end
return { answers, aftermath() }
