-- queue_info: reads counts, settings and ready jobs of a queue.
-- uses: lanes counts
--
-- returns {counts, settings, next due time or false, {priority, ready jobs seen, created time of the oldest,
--   groups not looked at, ...}}
--
-- Work is bounded: some lanes of each class are read, and of more than SMALL ready jobs only the heads of lanes.
local SMALL, LANES, LEAST = 50, 1000, 10
local ready, priorities = {}, {}
local most = job_counts().ready <= SMALL and SMALL or 1

local function read_lane(one, lane)
  one.count = one.count + lane_size(lane)
  local stale = most > 1 and math.min(LANES, tonumber(call('HGET', Q .. 'stale', lane) or 0)) or 0
  for _, id in ipairs((first_jobs(lane, most + stale))) do
    -- A damaged job must not keep the queue from being shown.
    local readable, job = pcall(load, id)
    if readable and job and job.created and job.state == 'ready' and lane_of(job) == lane then
      one.oldest = math.min(one.oldest or job.created, job.created)
    end
  end
end

-- Lanes that are held back stand in rings of their own.
local function read_class(one, class, kind, left)
  local groups = call('ZRANGE', Q .. 'r' .. kind .. ':' .. class, 0, left - 1)
  for _, group in ipairs(groups) do
    for _, lane in ipairs(call('ZRANGE', Q .. 'g' .. kind .. ':' .. class .. '\n' .. group, 0, left - 1)) do
      read_lane(one, lane)
    end
  end
  one.unseen = one.unseen + call('ZCARD', Q .. 'r' .. kind .. ':' .. class) - #groups
end

local classes = call('ZRANGE', Q .. 'index', 0, LANES - 1)
local share = math.max(LEAST, math.floor(LANES / math.max(1, #classes)))
for _, class in ipairs(classes) do
  local priority = priority_of(class) or 9
  if not ready[priority] then
    ready[priority] = { count = 0, unseen = 0 }
    priorities[#priorities + 1] = priority
  end
  read_class(ready[priority], class, '', share)
  read_class(ready[priority], class, 'b', share)
end
local reply = {}
for _, priority in ipairs(priorities) do
  local one = ready[priority]
  for _, value in ipairs({ priority, one.count, one.oldest or now, one.unseen }) do reply[#reply + 1] = value end
end
local due = call('ZRANGE', Q .. 'due', 0, 0, 'WITHSCORES')[2]
return { counts_reply(), call('HGETALL', Q .. 'set'), due or false, reply }
