-- put_plain: the fast path of put, for simple jobs that are new, in a queue without bounds. Otherwise it changes
-- nothing and the full script goes on.
-- uses: plain
--
-- Takes and returns the same as put. Scheduled jobs are written head first, because a body without a head is a ready
--          job.
local function plainly()
  local first = ARGV[4]
  if ARGV[3] ~= '' or not first then return end
  local ids, seen, later = {}, {}, false
  for i = 4, #ARGV, 3 do
    local id = ARGV[i]
    if seen[id] or string.byte(ARGV[i + 2]) == 123 then return end
    later = later or string.find(ARGV[i + 2], '"d":', 1, true)
    seen[id], ids[#ids + 1] = true, id
  end
  -- Mostly none of these exists, so one call replaces three.
  local special = call('EXISTS', Q .. 'set', Q .. 'class', Q .. 'sleep') > 0
  local set = special and call('HGET', Q .. 'set', 'limits')
  if set then
    set = cmsgpack.unpack(set)
    if set.x or set.e then return end
  end
  local alone = #ids == 1 and not later
  if alone then
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
  local line, turn, now = tonumber(n[2] or 0), tonumber(n[3] or 0), tonumber(at)
  local bodies, lanes, order, said, heads, dues, states, soonest = {}, {}, {}, {}, {}, {}, {}, nil
  for i = 4, #ARGV, 3 do
    local id, body, class, options = ARGV[i], ARGV[i + 1], ARGV[i + 2], nil
    local cut, due = string.find(class, '\n', 1, true), nil
    if cut then
      class, options = string.sub(class, 1, cut - 1), string.sub(class, cut + 1)
      due = tonumber(string.match(options, '"d":(%d+)'))
    end
    local size = #bodies
    bodies[size + 1], bodies[size + 2] = id, body
    if due and due > now then
      local a = string.sub(body, -string.byte(body, -2) * 256 - string.byte(body, -1) - 2, -3)
      local text = string.format('%.0f', due)
      local last = #heads
      heads[last + 1], heads[last + 2] = id, 's' .. text .. '\n' .. a
      dues[last + 1], dues[last + 2] = text, string.sub(a, 1, 16) .. id
      states[#states + 1], soonest = 's', math.min(soonest or due, due)
    else
      local entries = lanes[class]
      if not entries then
        entries = {}
        lanes[class], order[#order + 1] = entries, class
      end
      line = line + 1
      local last = #entries
      entries[last + 1], entries[last + 2] = line, id
      said[class] = options or false
      if later then states[#states + 1] = 'r' end
    end
  end
  if #heads > 0 then
    call('HSET', Q .. 'head', unpack(heads))
    call('ZADD', Q .. 'due', unpack(dues))
    call('HINCRBY', Q .. 'counts', 's', #heads / 2)
  end
  if not alone then call('HSET', Q .. 'job', unpack(bodies)) end
  for _, class in ipairs(order) do
    turn = join(class, lanes[class], turn)
    if said[class] then
      local last = cjson.decode(said[class])
      store_declared('class', class, last.r, last.m)
    elseif special then
      call('HDEL', Q .. 'class', class)
    end
  end
  local number, total = (n[4] or 0) + 1, (n[5] or 0) + #ids
  call('HSET', Q .. 'n', 'line', line, 'turn', turn, 'feed', number, 'events', total)
  call('XADD', Q .. 'feed', 'MAXLEN', '~', math.max(100, math.min(10000, math.floor(200000 * number / total))),
    number .. '-0', 'a', at, 'e', 'p0 ' .. table.concat(ids, '\np0 '))
  local ready = #ids - #heads / 2
  if ready > 0 then call('HINCRBY', Q .. 'counts', 'r', ready) end

  if special and call('EXISTS', Q .. 'sleep') == 1 then
    for _, class in ipairs(order) do wake_for_class(class, #lanes[class] / 2) end
    if soonest then wake_before(soonest) end
  end
  return { n[1] or 0, later and table.concat(states) or 1, { 0, {}, {} } }
end

local quick = plainly()
if quick then return quick end
