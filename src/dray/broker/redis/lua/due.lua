-- due: simple jobs whose time has come are made ready together. Their heads are "s<due>\n<attributes>" until then;
-- as ready jobs they have none, like those that were never delayed.
-- uses: plain
--
-- Returns nil if nothing is due; false, with nothing changed, if not all of it is simple; else what the caller has to
-- tell: how many moved, the events, and how many joined which class. Lanes are written before `due` is left.
local function fall_due(now, limit)
  local due = call('ZRANGEBYSCORE', Q .. 'due', '-inf', now, 'LIMIT', 0, limit)
  if #due == 0 then return nil end
  if #due > 3000 then return false end
  local ids = {}
  for i, text in ipairs(due) do ids[i] = string.sub(text, 17) end
  local n = call('HMGET', Q .. 'n', 'line', 'turn')
  local line, turn = tonumber(n[1] or 0), tonumber(n[2] or 0)
  local lanes, order, said, events, ready = {}, {}, {}, {}, {}
  for i, head in ipairs(call('HMGET', Q .. 'head', unpack(ids))) do
    local class, options = string.match(head or '', '^s%d+\n%d+ ([^\n]*)(.*)$')
    if not class then return false end
    local entries = lanes[class]
    if not entries then
      entries = {}
      lanes[class], order[#order + 1] = entries, class
    end
    local last = #entries
    entries[last + 1], entries[last + 2] = line + i, ids[i]
    events[i], said[class] = 'P0 ' .. ids[i], options
  end
  for _, class in ipairs(order) do
    turn = join(class, lanes[class], turn)
    ready[class] = #lanes[class] / 2
    -- What the last to join declares counts.
    local last = said[class] ~= '' and cjson.decode(string.sub(said[class], 5)) or {}
    store_declared('class', class, last.r, last.m)
  end
  call('HSET', Q .. 'n', 'line', line + #ids, 'turn', turn)
  call('HDEL', Q .. 'head', unpack(ids))
  call('ZREMRANGEBYRANK', Q .. 'due', 0, #due - 1)
  return { moved = #due, events = events, ready = ready }
end
