-- filters: which classes of jobs a worker runs.
-- uses: prelude
local FEW = 4 -- sleepers that are looked at first

-- A filter: version, tasks and priorities, these two as lists.
local function can_run(filter, class)
  local priority, task, version = string.match(class, '^(%d+)|(.-)|(%d+)$')
  return tonumber(version) <= filter.version
    and (filter.tasks == '' or string.find(filter.tasks, ',' .. task .. ',', 1, true) ~= nil)
    and (filter.priorities == '' or string.find(filter.priorities, ',' .. priority .. ',', 1, true) ~= nil)
end

-- The filter in three arguments from `first` on: version, tasks, priorities.
local function read_filter(first)
  return { version = tonumber(ARGV[first]), tasks = ARGV[first + 1], priorities = ARGV[first + 2] }
end

-- The filter of a sleeper and the mark of its sleep.
local function sleeper_filter(stored)
  local mark, version, priorities, tasks =
    string.match(stored, '^until=%d+ mark=(%d+) version=(%d+) priorities=([^ ]*) tasks=([^ ]*)')
  if mark then return { mark = mark, version = tonumber(version), tasks = tasks, priorities = priorities } end
end
