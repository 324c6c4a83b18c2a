-- blocking: lanes that a limit holds back are put aside.
-- uses: limits
--
-- `rb:CLASS`, `gb:CLASS\nGROUP`  rings and groups (see order) of lanes that a limit of their group or key holds back:
--           `take` does not meet them
-- `blocked`  ZSET lane -> when it may be looked at again; `bc:CAUSE` SET lanes that wait for a slot of a group or key
-- All exist only while they have jobs.
local touched, ringed = {}, {}

local function priority_of(class)
  return tonumber(string.match(class, '^%d+'))
end

local function lane_parts(lane)
  return string.match(lane, '^([^\n]*)\n([^\n]*)\n([^\n]*)\n(.*)$')
end

local function is_plain_lane(lane)
  return string.sub(lane, -3) == PLAIN_LANE
end

-- True if the class has groups with lanes that are held back.
local function has_blocked(class)
  if ringed[class] == nil then ringed[class] = call('EXISTS', Q .. 'rb:' .. class) == 1 end
  return ringed[class]
end

local function is_blocked(lane)
  return not is_plain_lane(lane) and call('ZSCORE', Q .. 'blocked', lane)
end

-- A lane is held back until a time, or until a slot of its group or key is free again (`cause`).
local function block(lane, until_, cause)
  local class, group = lane_parts(lane)
  local free, ring, name = Q .. 'g:' .. class .. '\n' .. group, Q .. 'r:' .. class, class .. '\n' .. group
  call('ZADD', Q .. 'gb:' .. name, call('ZSCORE', free, lane), lane)
  call('ZADD', Q .. 'rb:' .. class, call('ZSCORE', ring, group), group)
  ringed[class] = true
  call('ZADD', Q .. 'blocked', until_, lane)
  if cause then call('SADD', Q .. 'bc:' .. cause, lane) end
  call('ZREM', free, lane)
  if call('EXISTS', free) == 0 then call('ZREM', ring, group) end
  touched[class] = true
end

local function unblock(lane)
  if call('ZREM', Q .. 'blocked', lane) == 0 then return end
  local class, group = lane_parts(lane)
  local name, ring = class .. '\n' .. group, Q .. 'r:' .. class
  call('ZADD', Q .. 'g:' .. name, call('ZSCORE', Q .. 'gb:' .. name, lane), lane)
  call('ZREM', Q .. 'gb:' .. name, lane)
  if not call('ZSCORE', ring, group) then call('ZADD', ring, call('ZSCORE', Q .. 'rb:' .. class, group), group) end
  if call('EXISTS', Q .. 'gb:' .. name) == 0 then call('ZREM', Q .. 'rb:' .. class, group) end
  touched[class] = true
end

local function unblock_due()
  for _, lane in ipairs(call('ZRANGEBYSCORE', Q .. 'blocked', '-inf', now, 'LIMIT', 0, 1000)) do unblock(lane) end
end

local function unblock_cause(cause)
  local lanes = call('SMEMBERS', Q .. 'bc:' .. cause)
  if not lanes[1] then return end
  for _, lane in ipairs(lanes) do unblock(lane) end
  call('DEL', Q .. 'bc:' .. cause)
end
