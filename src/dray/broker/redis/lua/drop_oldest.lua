-- drop_oldest: the job that `drop-oldest` drops.
-- uses: walk removal

-- The first job of a lane that has not started and is no node, with its number.
local function first_droppable(lane)
  local step = 1
  while true do
    local ids, numbers = first_jobs(lane, step)
    for i, id in ipairs(ids) do
      local job = load(id)
      -- Any entry but the first may be stale.
      local live = job and job.state == 'ready' and job.line == tonumber(numbers[i]) and lane_of(job) == lane
      if live and job.run == 0 and not job.options.node then return job.line, id end
    end
    if #ids < step then return nil end
    step = step * 10
  end
end

-- The first in line of the lowest priority that is not above `priority`.
local function oldest_unimportant(priority)
  local best, first, id
  for _, class in ipairs(call('ZREVRANGEBYSCORE', Q .. 'index', '+inf', priority * PRIORITY)) do
    if best and priority_of(class) < best then break end
    for _, lane in ipairs(all_lanes(class)) do
      local number, found = first_droppable(lane)
      if number and (not first or number < first) then best, first, id = priority_of(class), number, found end
    end
  end
  return id
end
