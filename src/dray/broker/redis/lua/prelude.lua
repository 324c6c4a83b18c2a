-- prelude: the beginning of every script that works on a queue, also of the fast paths.
-- uses: state
--
-- ARGV[2]  retention in ms: done,dead,result (dead -1: forever)
--
-- `n`       HASH of counters: line (numbers in line), turn, feed (entries), more (events beyond one per entry), out,
--           dep; known: the queue is enlisted; base: added to the numbers of feed entries for readers (see
--           forget_queue_name); idle: the time of the newest entry of a feed that was dropped
-- `counts`  HASH retrying | dead | cancelled -> number of jobs, second -> jobs with a second run. The other states
--           follow from these and the sizes of places (see counts)
-- `running` HASH q | t:TASK | g:GROUP | k:KEY -> runs held now
-- `feed`    STREAM number-0 -> a at, e events: one "<kind><run> <id>" per line. 10,000 entries are kept, fewer where
--           they are long: about 200,000 events. Kinds are single letters, see read.py
--
-- Events, counts and slots in use are collected while a script runs, and written once.

-- Lua's unpack fails near 8,000 values, so long lists are split.
local function many(command, key, list)
  if #list <= 4000 then return call(command, key, unpack(list)) end
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

-- Adds to the numbers of a hash; a zero is removed.
local function add_numbers(key, changes)
  local zeros = nil
  for field, by in pairs(changes) do
    if by ~= 0 and call('HINCRBY', key, field, by) == 0 then
      zeros = zeros or {}
      zeros[#zeros + 1] = field
    end
  end
  if zeros then many('HDEL', key, zeros) end
end

-- Appends one entry of so many events. How many entries are kept depends on their length: on the number of entries and
-- of further events so far.
local function add_to_feed(text, size)
  local number, keep = call('HINCRBY', Q .. 'n', 'feed', 1), '10000'
  if size > 1 then
    local more = call('HINCRBY', Q .. 'n', 'more', size - 1)
    keep = math.max(100, math.min(10000, math.floor(200000 * number / (number + more))))
  end
  call('XADD', Q .. 'feed', 'MAXLEN', '~', keep, number .. '-0', 'a', at, 'e', text)
end

local function channel(kind, name)
  return 'dray:' .. string.match(Q, '{(.-):') .. ':' .. kind .. ':' .. name
end
