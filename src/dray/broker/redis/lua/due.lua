-- due: fall_due() makes simple jobs ready whose time has come. Until then their heads are "s<due>\n<attributes>"; as
-- ready jobs they have no head, like jobs that were never delayed.
-- uses: plain
--
-- fall_due returns nil if nothing is due; false, with nothing changed, if a due job is not simple; else {moved: number
-- of jobs, events, ready: class -> number of jobs}. Lanes are written before `due` is left.
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
    -- The limits that the last job to join declares count.
    local last = said[class] ~= '' and cjson.decode(string.sub(said[class], 5)) or {}
    store_declared('class', class, last.r, last.m)
  end
  call('HSET', Q .. 'n', 'line', line + #ids, 'turn', turn)
  call('HDEL', Q .. 'head', unpack(ids))
  call('ZREMRANGEBYRANK', Q .. 'due', 0, #due - 1)
  return { moved = #due, events = events, ready = ready }
end
