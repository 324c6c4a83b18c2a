-- put_plain: the short way through `put`, for plain jobs that are new and whose queue has no limits of an operator's.
-- What else comes goes the whole way, and finds nothing changed.
--
-- Takes and returns what put does. New jobs stand behind all others of their lane, so only a lane that was empty
-- has to be put up: where it stands already, its head stays what it was.
local function plainly()
  local Q, call, first = KEYS[1], redis.call, ARGV[4]
  if ARGV[3] ~= '' or not first then return end
  local ids, seen = {}, {}
  for i = 4, #ARGV, 3 do
    local id = ARGV[i]
    if seen[id] or string.byte(ARGV[i + 2]) == 123 or string.find(ARGV[i + 2], '\n', 1, true) then return end
    seen[id], ids[#ids + 1] = true, id
  end
  -- Mostly none of these exists: one call instead of three.
  local special = call('EXISTS', Q .. 'set', Q .. 'class', Q .. 'sleep') > 0
  if special and call('HEXISTS', Q .. 'set', 'limits') == 1 then return end
  if #ids == 1 then
    if call('HSETNX', Q .. 'job', first, ARGV[5]) == 0 then return end
  else
    for _, there in ipairs(call('HMGET', Q .. 'job', unpack(ids))) do
      if there then return end
    end
  end
  local at = ARGV[1]
  if at == '' then
    local time = call('TIME')
    at = time[1] .. string.sub('00000' .. time[2], -6, -4)
  end

  local n = call('HMGET', Q .. 'n', 'known', 'line', 'turn', 'feed', 'events')
  local line, turn = tonumber(n[2] or 0), tonumber(n[3] or 0)
  local bodies, lanes, order = {}, {}, {}
  for i = 4, #ARGV, 3 do
    local id, class = ARGV[i], ARGV[i + 2]
    local entries = lanes[class]
    if not entries then
      entries = {}
      lanes[class], order[#order + 1] = entries, class
    end
    line = line + 1
    local last, size = #entries, #bodies
    entries[last + 1], entries[last + 2] = line, id
    bodies[size + 1], bodies[size + 2] = id, ARGV[i + 1]
  end
  if #ids > 1 then call('HSET', Q .. 'job', unpack(bodies)) end
  for _, class in ipairs(order) do
    local entries, lane = lanes[class], class .. '\n\n\n'
    call('ZADD', Q .. 'l:' .. lane, unpack(entries))
    if special then call('HDEL', Q .. 'class', class) end
    if call('ZADD', Q .. 'g:' .. class .. '\n', 'NX', entries[1], lane) == 1
      and not call('ZSCORE', Q .. 'r:' .. class, '') then
      local before = call('ZSCORE', Q .. 'rb:' .. class, '')
      if not before then turn = turn + 1 end
      call('ZADD', Q .. 'r:' .. class, before or turn, '')
      call('ZADD', Q .. 'index', string.match(class, '^%d+'), class)
    end
  end
  local number, told = (n[4] or 0) + 1, (n[5] or 0) + #ids
  call('HSET', Q .. 'n', 'line', line, 'turn', turn, 'feed', number, 'events', told)
  call('XADD', Q .. 'feed', 'MAXLEN', '~', math.max(100, math.min(10000, math.floor(200000 * number / told))),
    number .. '-0', 'a', at, 'e', 'p0 ' .. table.concat(ids, '\np0 '))
  call('HINCRBY', Q .. 'counts', 'r', #ids)

  local asleep = special and call('HGETALL', Q .. 'sleep') or {}
  local channel = #asleep > 0 and 'dray:' .. string.match(Q, '{(.-):') .. ':b:'
  for _, class in ipairs(#asleep > 0 and order or {}) do
    local jobs, priority, task, version = #lanes[class] / 2, string.match(class, '^(%d+)|(.-)|(%d+)$')
    for i = 1, #asleep, 2 do
      if jobs == 0 then break end
      local sleeper = asleep[i + 1] and cjson.decode(asleep[i + 1])
      if sleeper and tonumber(version) <= sleeper.v and (not sleeper.p or sleeper.p[priority])
        and (not sleeper.t or sleeper.t[task]) then
        asleep[i + 1] = false
        call('HDEL', Q .. 'sleep', asleep[i])
        if call('PUBLISH', channel .. asleep[i], 'w' .. (sleeper.k or '')) > 0 then jobs = jobs - 1 end
      end
    end
  end
  return { n[1] or 0, 1, { 0, {}, {} } }
end

local quick = plainly()
if quick then return quick end
