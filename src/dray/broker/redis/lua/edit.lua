-- edit: changes jobs of one queue by hand: cancel, retry, delete and the like.
-- uses: base job lanes transitions
--
-- ARGV[3] action: cancel force retry delete reschedule reprioritise speculate  [4] its argument: reason, due, priority
--          or run
-- ARGV[5] 1 for a dry run  [6] a state letter the jobs must be in, or ''  [7] 1: skip jobs that need no change
-- ARGV[8..] ids
-- returns {answers, aftermath}; per id '' if it was (or would be) changed, '-' if skipped, else the reason of the
--          refusal
local action, value, dry = ARGV[3], ARGV[4], ARGV[5] == '1'

local refusal = {
  cancel = function(job)
    if finished[job.s] then return 'it is ' .. words[job.s] .. ' already' end
  end,
  retry = function(job)
    if job.s == 'w' or job.s == 'r' or job.s == 'h' then return 'it is ' .. words[job.s] end
    local holder = finished[job.s] and other_key_holder(job)
    if holder then return 'its key is taken by ' .. holder end
  end,
  delete = function(job)
    if job.s == 'h' then return 'it is running: cancel it first' end
  end,
  reschedule = function(job)
    if job.s ~= 's' and job.s ~= 't' and job.s ~= 'r' then return 'it is ' .. words[job.s] end
  end,
  reprioritise = function(job)
    if finished[job.s] or job.s == 'h' then return 'it is ' .. words[job.s] end
  end,
  speculate = function(job)
    if job.c then return 'it is being cancelled' end
    if job.s ~= 'h' then return 'it is ' .. words[job.s] end
    if not job.o.s then return 'its task is not marked speculate=True' end
    if job.of or job.R[2] then return 'it has a second run already' end
    if value ~= '' and tonumber(value) ~= job.r then return 'its newest run is ' .. job.r end
  end,
}

refusal.force = refusal.cancel

local function is_forced(job)
  local run = job.R[1]
  return call('HGET', Q .. 'asked', run[1] .. ' ' .. job.id) == run[2] .. '\n!'
end

local function ask_to_stop(job, mark)
  job.c = job.c or value
  withdraw_offer(job)
  for _, run in ipairs(job.R) do
    local ref = run[1] .. ' ' .. job.id
    call('HSET', Q .. 'asked', ref, run[2] .. mark)
    call('SREM', Q .. 'heard:' .. run[2], ref)
    call('PUBLISH', channel('s', run[2]), '1')
  end
  save(job)
  note('A', job.id, job.r)
end

local change = {
  cancel = function(job)
    if job.s ~= 'h' then return finish(job, 'C', 'c', value) end
    if not job.c then ask_to_stop(job, '') end
  end,
  force = function(job)
    if job.s ~= 'h' then return finish(job, 'C', 'c', value) end
    if not is_forced(job) then ask_to_stop(job, '\n!') end
  end,
  retry = function(job)
    if finished[job.s] then claim_key(job) end
    if job.s == 'o' and job.r == 1 then add_past_run(job, { 1, '', job.b, job.z, 'succeeded', '' }) end
    job.f, job.x, job.u, job.z, job.y = nil, nil, nil, nil, nil
    job.dl = job.o.dl and now + job.o.dl
    call('HDEL', Q .. 'res', job.id)
    call('HDEL', Q .. 'err', job.id)
    call('DEL', Q .. 'res:' .. job.id)
    enqueue(job, 'Y', nil)
  end,
  delete = function(job)
    note('L', job.id)
    forget(job)
  end,
  reschedule = function(job)
    enqueue(job, 'H', tonumber(value))
  end,
  reprioritise = function(job)
    local number = job.s == 'r' and tonumber(call('ZSCORE', Q .. 'l:' .. lane_of(job), job.id))
    leave(job, job.s)
    job.p = string.gsub(job.class, '^%d+', value)
    job.class, job.n = job.p, number or job.n
    enter(job)
    save(job)
    note('I', job.id)
  end,
  speculate = function(job)
    job.of = 1
    call('ZADD', Q .. 'offer', call('HINCRBY', Q .. 'n', 'turn', 1), job.id)
    save(job)
    woken.all = true
    note('O', job.id, job.r)
  end,
}

local function already(job)
  if action == 'reprioritise' then return priority_of(job.class) == tonumber(value) end
  if action == 'reschedule' then
    return job.d == tonumber(value) or (job.s == 'r' and tonumber(value) <= now)
  end
  return false
end

local answers = {}
for i = 8, #ARGV do
  local job = load(ARGV[i])
  local why
  if not job then why = 'not_found'
  elseif (ARGV[6] ~= '' and job.s ~= ARGV[6]) or (ARGV[7] == '1' and already(job)) then why = '-'
  else why = refusal[action](job)
  end
  answers[#answers + 1] = why or ''
  if not why and not dry then change[action](job) end
end
return { answers, aftermath() }
