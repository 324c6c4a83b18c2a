-- durable: what wakes a suspended job, ends or revives one by hand.
-- uses: removal
local durable = {}

-- What a suspended job waits for has come, or is not waited for any longer.
function durable.wake(job)
  stop_waiting(job)
  enqueue(job, 'W', nil)
  job.was_woken = true -- so it is not handed over: nearly always it has a log to be read first
end

-- `box:ID` HASH per name: "name\n#" newest number, "name\n<" up to which number messages were dropped, "name\n<number>"
-- body, "name\n@<number>" id, "name\n=<id>" number
function durable.has_news(job, events)
  for name, seen in pairs(job.box and events or {}) do
    if tonumber(call('HGET', Q .. 'box:' .. job.id, name .. '\n#') or 0) > seen then return true end
  end
  return false
end

-- Forgets failures, and of a finished job its end; a durable one goes on with its log, unless it was undone.
function durable.begin_again(job)
  if job.state == 'succeeded' and job.run == 1 then
    add_past_run(job, 1, '', job.started, job.finished, 'succeeded', '')
  end
  if finished[job.state] then job.replayed = job.run > 0 and job.run or nil end
  if job.undone then
    call('DEL', Q .. 'log:' .. job.id)
    job.memos, job.size, job.undone = nil, nil, nil
  end
  job.failures, job.crashes, job.suspect, job.finished, job.reason = 0, nil, nil, nil, nil
  job.orphaned, job.depends = nil, nil
  if not job.undo then job.deadline = job.options.deadline and now + job.options.deadline end
  call('HDEL', Q .. 'res', job.id)
  call('HDEL', Q .. 'err', job.id)
  call('DEL', Q .. 'res:' .. job.id)
end

function durable.is_forced(job)
  local run = job.runs[1]
  return call('HGET', Q .. 'asked', run[1] .. ' ' .. job.id) == run[2] .. '\n!'
end

function durable.ask_to_stop(job, reason, mark)
  job.cancel = job.cancel or reason
  withdraw_offer(job)
  for _, run in ipairs(job.runs) do
    local ref = run[1] .. ' ' .. job.id
    call('HSET', Q .. 'asked', ref, run[2] .. mark)
    call('SREM', Q .. 'heard:' .. run[2], ref)
    call('PUBLISH', channel('s', run[2]), '1')
  end
  save(job)
  note('A', job.id, job.run)
end

-- A job that runs is asked to stop; any other ends, or is undone. `force` skips the undo.
function durable.cancel(job, reason, force)
  if finished[job.state] or (job.undo and not force) then return end
  if job.state == 'running' then
    if not job.cancel or (force and not durable.is_forced(job)) then
      durable.ask_to_stop(job, reason, force and '\n!' or '')
    end
    return
  end
  job.forced = force
  if job.undo then end_undo(job, reason) else finish(job, 'C', 'cancelled', reason) end
end
