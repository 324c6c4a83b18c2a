-- edit: changes jobs of one queue by hand: cancel, retry, delete and the like.
-- uses: durable
--
-- ARGV[3] action: cancel force retry delete reschedule reprioritise speculate continue  [4] its argument: reason, due, priority
--          or run
-- ARGV[5] 1 for a dry run  [6] the state that the jobs must be in, or ''  [7] 1: skip jobs that need no change
-- ARGV[8..] ids
-- returns {answers, aftermath}; per id '' if it was (or would be) changed, '-' if skipped, else the reason of the
--          refusal
local action, value, dry = ARGV[3], ARGV[4], ARGV[5] == '1'

local refusal = {
  cancel = function(job)
    if finished[job.state] then return 'it is ' .. job.state .. ' already' end
    if job.undo and action == 'cancel' then return 'it is being undone' end
  end,
  retry = function(job)
    if job.state == 'waiting' or job.state == 'ready' or job.state == 'running' then return 'it is ' .. job.state end
    local holder = finished[job.state] and other_key_holder(job)
    if holder then return 'its key is taken by ' .. public_id(holder) end
  end,
  delete = function(job)
    if job.undo then return 'it is being undone' end
    if job.state == 'running' then return 'it is running: cancel it first' end
  end,
  reschedule = function(job)
    if job.state ~= 'scheduled' and job.state ~= 'retrying' and job.state ~= 'ready' then return 'it is ' .. job.state end
  end,
  reprioritise = function(job)
    if finished[job.state] or job.state == 'running' then return 'it is ' .. job.state end
  end,
  speculate = function(job)
    if job.cancel then return 'it is being cancelled' end
    if job.state ~= 'running' then return 'it is ' .. job.state end
    if not job.options.speculate then return 'its task is not marked speculate=True' end
    if job.offered or job.runs[2] then return 'it has a second run already' end
    if value ~= '' and tonumber(value) ~= job.run then return 'its newest run is ' .. job.run end
  end,
  continue = function(job)
    if not job.suspended or not cjson.decode(job.suspended).parked then return 'it is ' .. job.state .. ', not parked' end
  end,
}

refusal.force = refusal.cancel

local change = {
  cancel = function(job)
    durable.cancel(job, value, false)
  end,
  force = function(job)
    durable.cancel(job, value, true)
  end,
  continue = durable.wake,
  retry = function(job)
    local ended = finished[job.state]
    if ended then claim_key(job) end
    durable.begin_again(job)
    enqueue(job, 'Y', nil)
    if ended then tell_revived(job) end
  end,
  delete = function(job)
    note('L', job.id)
    forget(job)
  end,
  reschedule = function(job)
    enqueue(job, 'H', tonumber(value))
  end,
  reprioritise = function(job)
    leave(job, job.state)
    job.class = string.gsub(job.class, '^%d+', value)
    enter(job)
    save(job)
    note('I', job.id)
  end,
  speculate = function(job)
    job.offered = 1
    call('ZADD', Q .. 'offer', call('HINCRBY', Q .. 'n', 'turn', 1), job.id)
    save(job)
    woken.all = true
    note('O', job.id, job.run)
  end,
}

local function already(job)
  if action == 'reprioritise' then return priority_of(job.class) == tonumber(value) end
  if action == 'reschedule' then
    return job.due == tonumber(value) or (job.state == 'ready' and tonumber(value) <= now)
  end
  return false
end

local answers = {}
for i = 8, #ARGV do
  local job = load(ARGV[i])
  local why
  if not job then why = 'not_found'
  elseif (ARGV[6] ~= '' and job.state ~= ARGV[6]) or (ARGV[7] == '1' and already(job)) then why = '-'
  else why = refusal[action](job)
  end
  answers[#answers + 1] = why or ''
  if not why and not dry then change[action](job) end
end
return { answers, aftermath() }
