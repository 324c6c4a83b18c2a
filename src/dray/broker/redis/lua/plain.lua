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
  if not group then return end
  local head = call('ZRANGE', Q .. 'g:' .. class .. '\n' .. group, 0, 0, 'WITHSCORES')[2]
  call('ZADD', Q .. 'index', rank(class, head), class)
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

-- Wakes as many sleepers as there are jobs of a class, of those that can run it (see `wake_sleepers`), and strikes them
-- off `asleep`, the content of `sleep`.
local function wake_for_class(asleep, class, jobs)
  local channel = 'dray:' .. string.match(Q, '{(.-):') .. ':b:'
  local priority, task, version = string.match(class, '^(%d+)|(.-)|(%d+)$')
  for i = 1, #asleep, 2 do
    if jobs <= 0 then return end
    local sleeper = asleep[i + 1] and cjson.decode(asleep[i + 1])
    if sleeper and tonumber(version) <= sleeper.v and (not sleeper.p or sleeper.p[priority])
      and (not sleeper.t or sleeper.t[task]) then
      asleep[i + 1] = false
      call('HDEL', Q .. 'sleep', asleep[i])
      if call('PUBLISH', channel .. asleep[i], 'w' .. (sleeper.k or '')) > 0 then jobs = jobs - 1 end
    end
  end
end

-- Wakes the sleepers whose timeout is after `due`; all of them if `due` is nil.
local function wake_before(asleep, due)
  local channel = 'dray:' .. string.match(Q, '{(.-):') .. ':b:'
  for i = 1, #asleep, 2 do
    if asleep[i + 1] and (not due or cjson.decode(asleep[i + 1]).u > due) then
      asleep[i + 1] = false
      call('HDEL', Q .. 'sleep', asleep[i])
      call('PUBLISH', channel .. asleep[i], '1')
    end
  end
end
