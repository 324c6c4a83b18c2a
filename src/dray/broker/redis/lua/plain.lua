-- plain: functions that the fast paths (`*_plain.lua`) share with the full scripts, placed before both.
--
-- A simple job has no group, no keys and no options but limits of its task as a whole and a due time; MORE matches what
-- its attributes may have behind the class (see job). Its lane is "class\n\n\n", which is never held back.
local Q, call = KEYS[1], redis.call
local MORE = '\n\n\n\n{["rmd:,%d%[%]]+}$'

-- The score of a class in `index`: classes stand in the order of taking, by priority, then by their next job.
local PRIORITY = 2 ^ 49
local function rank(class, head)
  return string.match(class, '^%d+') * PRIORITY + head
end

-- Puts a class at its place in `index`: its next job is the oldest of the group whose turn it is.
local function index_class(class)
  local group = call('ZRANGE', Q .. 'r:' .. class, 0, 0)[1]
  local head = group and call('ZRANGE', Q .. 'g:' .. class .. '\n' .. group, 0, 0, 'WITHSCORES')[2]
  if head then call('ZADD', Q .. 'index', rank(class, head), class) end
end

-- GCRA in whole microseconds, as `policy.Rate`. A time too far ahead comes from a clock that went back.
local function gcra_used(tat, rate, at)
  if tat < at or tat > at + rate[2] * rate[1] + 60000000 then return at end
  return tat
end

local function gcra_starts(used, rate, at)
  return math.max(0, math.floor((at + rate[2] * rate[1] - used) / rate[1]))
end

local function store_declared(key, field, rate, most)
  if rate or most then
    call('HSET', Q .. key, field, cmsgpack.pack({ r = rate, m = most }))
  else
    call('HDEL', Q .. key, field)
  end
end

-- Adds new jobs behind all others of their lane. Only a lane that was empty has to be listed; any other keeps its head.
-- `entries`: number, id, number, id ... Returns the last turn given.
local function join(class, entries, turn)
  local lane = class .. '\n\n\n'
  call('ZADD', Q .. 'l:' .. lane, unpack(entries))
  if call('ZADD', Q .. 'g:' .. class .. '\n', 'NX', entries[1], lane) == 1
    and not call('ZSCORE', Q .. 'r:' .. class, '') then
    local before = call('ZSCORE', Q .. 'rb:' .. class, '')
    if not before then turn = turn + 1 end
    call('ZADD', Q .. 'r:' .. class, before or turn, '')
    if before or call('ZCARD', Q .. 'r:' .. class) > 1 then
      index_class(class)
    else
      call('ZADD', Q .. 'index', rank(class, entries[1]), class)
    end
  end
  return turn
end

-- `sleep` HASH waiter -> "version until mark\npriorities\ntasks": when it checks again by itself, the mark of its sleep
-- here, and its filter (JSON maps; '' means any; names have no characters that JSON escapes).
local function register_sleeper(waiter, until_, mark, version, tasks, priorities)
  local text = string.format('%s %.0f %s\n', version, until_, mark)
  call('HSET', Q .. 'sleep', waiter, text .. priorities .. '\n' .. tasks)
end

-- Strikes a sleeper off and sends it a message. False if it was struck off before, or is dead: nothing listens.
local function wake(waiter, message)
  if call('HDEL', Q .. 'sleep', waiter) == 0 then return false end
  return call('PUBLISH', 'dray:' .. string.match(Q, '{(.-):') .. ':b:' .. waiter, message) > 0
end

-- Wakes as many sleepers as there are jobs of a class, of those that can run it ("w" and the mark: there is work). A few
-- are looked at first: mostly any can, and the number of sleepers must not make a put slow.
local FEW = 4
local function wake_for_class(class, jobs)
  local priority, task, version = string.match(class, '^(%d+)|(.-)|(%d+)$')
  priority, task, version = '"' .. priority .. '":', '"' .. task .. '":', tonumber(version)
  local function wake_of(asleep)
    for i = 1, #asleep, 2 do
      if jobs <= 0 then return end
      local knows, mark, priorities, tasks = string.match(asleep[i + 1], '^(%d+) %d+ (%d+)\n([^\n]*)\n(.*)$')
      if knows and version <= tonumber(knows) and (priorities == '' or string.find(priorities, priority, 1, true))
        and (tasks == '' or string.find(tasks, task, 1, true)) and wake(asleep[i], 'w' .. mark) then
        jobs = jobs - 1
      end
    end
  end
  if jobs <= FEW then
    local some = call('HRANDFIELD', Q .. 'sleep', FEW, 'WITHVALUES')
    wake_of(some)
    if #some < 2 * FEW then return end
  end
  if jobs > 0 then wake_of(call('HGETALL', Q .. 'sleep')) end
end

-- Wakes the sleepers whose timeout is after `due`; all of them if `due` is nil ("c" and the mark: check again).
local function wake_before(due)
  local asleep = call('HGETALL', Q .. 'sleep')
  for i = 1, #asleep, 2 do
    local until_, mark = string.match(asleep[i + 1], '^%d+ (%d+) (%d+)')
    if not due or not until_ or tonumber(until_) > due then wake(asleep[i], 'c' .. (mark or 0)) end
  end
end
