-- promote: makes due jobs ready, the longest overdue first.
-- uses: due_fast durable
local fall_due, add_fallen = due_fast()

local function promote(limit)
  local fallen = next(jobs) == nil and fall_due(limit)
  if fallen == nil then return 0 end
  if fallen then
    add_fallen(fallen)
    return fallen.moved
  end
  local due = call('ZRANGEBYSCORE', Q .. 'due', '-inf', at, 'LIMIT', 0, limit)
  for _, text in ipairs(due) do
    local job = load(id_of(text))
    if job and place[job.state] == 'due' then
      enqueue(job, 'P', job.due)
    elseif job and job.state == 'waiting' and job.wake then
      durable.wake(job)
    else
      call('ZREM', Q .. 'due', text)
    end
  end
  return #due
end
