-- base: the beginning of every script that works on a queue.
-- uses: plain
--
-- KEYS[1]  the queue's prefix `dray:{namespace:queue}:`. Every key of a queue begins with it, so a queue is one slot
-- ARGV[1]  now in ms; '' means the server's clock
-- ARGV[2]  retention in ms: done,dead,result (dead -1: forever)
--
-- `n`       HASH of counters: line (numbers in line), turn, feed (entries), events, out, dep; known: the queue is
--           enlisted; base: added to the numbers of feed entries for readers (see forget_queue_name); idle: the time of
--           the newest entry of a feed that was dropped
-- `counts`  HASH letter of a state -> number of jobs
-- `feed`    STREAM number-0 -> a at, e events: one "<kind><run> <id>" per line. 10,000 entries are kept, fewer where
--           they are long: about 200,000 events
--
-- Events, counts per state, slots in use, wake-ups and the classes whose next job may have changed (`touched`) are
-- collected while a script runs; `close` writes them once.
-- Kinds of event are single letters, see read.py.
local Q, call = KEYS[1], redis.call
local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
-- Formatting a number costs more than all else here, so it is done once per script.
local at = string.format('%.0f', now)
local events, counted, slots = {}, {}, {}
local woken = { ready = {}, due = nil, all = false }
local touched, index_touched = {}, nil

local function note(kind, id, run)
  events[#events + 1] = run and kind .. run .. ' ' .. id or kind .. '0 ' .. id
end

local function count(state, by)
  counted[state] = (counted[state] or 0) + by
end

local function slot(what, by)
  slots[what] = (slots[what] or 0) + by
end

-- Lua's unpack fails near 8,000 values, so long lists are split.
local function many(command, key, list)
  for first = 1, #list, 4000 do
    call(command, key, unpack(list, first, math.min(first + 3999, #list)))
  end
end

local function fetch(command, key, fields)
  if #fields <= 4000 then return call(command, key, unpack(fields)) end
  local found = {}
  for first = 1, #fields, 4000 do
    local part = call(command, key, unpack(fields, first, math.min(first + 3999, #fields)))
    for i = 1, #part do found[first + i - 1] = part[i] end
  end
  return found
end

local function channel(kind, name)
  return 'dray:' .. string.match(Q, '{(.-):') .. ':' .. kind .. ':' .. name
end

local function can_run(filter, class)
  local priority, task, version = string.match(class, '^(%d+)|(.-)|(%d+)$')
  if tonumber(version) > filter.v then return false end
  if filter.p and not filter.p[priority] then return false end
  return not filter.t or filter.t[task] == true
end

-- Wakes one sleeper per job that became ready, of those that can run it.
local function wake_sleepers()
  if not (woken.all or woken.due or next(woken.ready)) or call('EXISTS', Q .. 'sleep') == 0 then return end
  for class, jobs in pairs(woken.ready) do wake_for_class(class, jobs) end
  if woken.all then wake_before() elseif woken.due then wake_before(woken.due) end
end

local function close()
  if next(touched) then index_touched() end
  if #events > 0 then
    local number, total = call('HINCRBY', Q .. 'n', 'feed', 1), call('HINCRBY', Q .. 'n', 'events', #events)
    local keep = math.max(100, math.min(10000, math.floor(200000 * number / total)))
    call('XADD', Q .. 'feed', 'MAXLEN', '~', keep, number .. '-0', 'a', at, 'e', table.concat(events, '\n'))
  end
  for state, by in pairs(counted) do
    if by ~= 0 and call('HINCRBY', Q .. 'counts', state, by) == 0 then call('HDEL', Q .. 'counts', state) end
  end
  for what, by in pairs(slots) do
    if by ~= 0 and call('HINCRBY', Q .. 'running', what, by) == 0 then call('HDEL', Q .. 'running', what) end
  end
  wake_sleepers()
end
