-- tally: collects events, counts and slots in use, and writes them once.
-- uses: prelude
local function note(kind, id, run)
  events[#events + 1] = kind .. (run or '0') .. ' ' .. id
end

local function is_counted(name)
  return name == 'retrying' or name == 'dead' or name == 'cancelled' or name == 'second'
end

local function count(name, by)
  if is_counted(name) then counted[name] = (counted[name] or 0) + by end
end

local function slot(what, by)
  slots[what] = (slots[what] or 0) + by
end

local function write_numbers()
  if #events > 0 then add_to_feed(table.concat(events, '\n'), #events + joined) end
  add_numbers(Q .. 'counts', counted)
  add_numbers(Q .. 'running', slots)
end
