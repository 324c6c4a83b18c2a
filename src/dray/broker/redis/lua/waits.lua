-- waits: the jobs that a job waits for.
-- uses: job
--
-- In the field `waits` of its head. More than MANY of them are in `waits:ID` SET instead, and the field is "many": so the
-- end of one costs the same, however many there are. `susp:ID` STRING what such a job waits for, if it is suspended.
local waits = { MANY = 100 }

function waits.list(job)
  if job.waits ~= 'many' then return job.waits or {} end
  return call('SMEMBERS', Q .. 'waits:' .. job.id)
end

function waits.set(job, ids)
  job.waits = #ids > 0 and ids or nil
  if #ids <= waits.MANY then return end
  many('SADD', Q .. 'waits:' .. job.id, ids)
  job.waits = 'many'
end

function waits.has(job, id)
  if job.waits == 'many' then return call('SISMEMBER', Q .. 'waits:' .. job.id, id) == 1 end
  for _, other in ipairs(job.waits or {}) do
    if other == id then return true end
  end
  return false
end

-- It does not wait for this one any more. The head is written only if it changes.
function waits.drop(job, id)
  if job.waits == 'many' then
    call('SREM', Q .. 'waits:' .. job.id, id)
    if call('EXISTS', Q .. 'waits:' .. job.id) == 1 then return end
    job.waits = nil
  else
    local left = {}
    for _, other in ipairs(job.waits) do
      if other ~= id then left[#left + 1] = other end
    end
    job.waits = #left > 0 and left or nil
  end
  save(job)
end

function waits.clear(job)
  if job.waits == 'many' then call('DEL', Q .. 'waits:' .. job.id) end
  job.waits = nil
end
