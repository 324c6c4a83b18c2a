-- removal: jobs that are deleted; the end of every script that moves jobs.
-- uses: ends close

-- Tells neither watchers nor dependants: another job takes the id, or `forget` tells them.
local function remove(job)
  stop_waiting(job)
  set_expires(job, nil)
  if job.deadline then call('ZREM', Q .. 'deadline', member(job)) end
  tell_children(job, 'not_found')
  end_suspension(job)
  leave(job, job.state)
  count(job.state, -1)
  count_node(job, job.state, nil)
  job.state = ''
  free_key(job)
  for _, key in ipairs({ 'job', 'head', 'res', 'err' }) do call('HDEL', Q .. key, job.id) end
  call('DEL', Q .. 'res:' .. job.id)
  if job.memos or job.box then call('DEL', Q .. 'log:' .. job.id, Q .. 'box:' .. job.id) end
  dirty[job.id], jobs[job.id] = nil, nil
end

-- For records past their retention: no event in the feed, but watchers and dependants are notified.
local function forget(job)
  remove(job)
  announce_end(job.id, 'not_found')
  if job.options.node and call('ZREMRANGEBYSCORE', Q .. 'd:' .. job.id, '-inf', '(0') > 0
    and call('EXISTS', Q .. 'd:' .. job.id) == 0 then
    call('SREM', Q .. 'ends', job.id)
  end
  if call('EXISTS', Q .. 'd:' .. job.id) == 0 then gone[#gone + 1] = job.id end
end

-- Pairs (dependency, dependant) to remove in other slots. A job put again under its id may wait for the same job as
-- before: that pair stays.
local function pairs_to_remove()
  local pairs_left = {}
  for i = 1, #forgotten, 2 do
    local job = jobs[forgotten[i + 1]]
    if not job or not waits.has(job, forgotten[i]) then
      pairs_left[#pairs_left + 1], pairs_left[#pairs_left + 2] = forgotten[i], forgotten[i + 1]
    end
  end
  return pairs_left
end

-- The follow-up work in other slots: 1 if the outbox has messages, pairs to remove, ids that are gone.
local function aftermath()
  save_all()
  if next(touched) then index_touched() end
  close()
  return { posted, pairs_to_remove(), gone }
end
