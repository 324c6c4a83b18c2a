-- joining: jobs with new numbers join the ends of lanes; limits that jobs declare.
-- uses: order
--
-- Jobs are sorted into lanes first (`sort_job`), then each lane is written once (`write_lanes`).

local function store_declared(key, field, rate, max_running)
  if rate or max_running then
    call('HSET', Q .. key, field, cjson.encode({ rate = rate or nil, max_running = max_running or nil }))
  else
    call('HDEL', Q .. key, field)
  end
end

-- The limits that the jobs of a class declare for the class as a whole: rate and max_running; false means none, nil
-- that no job says. A limit by key belongs to the lane.
local function say(said, options)
  if type(said) ~= 'table' then
    local last = said and said ~= '' and cjson.decode(said) or {}
    said = { rate = said and (last.rate or false), max_running = said and (last.max_running or false) }
  end
  if not options.rate_key then said.rate = options.rate or false end
  if not options.running_key then said.max_running = options.max_running or false end
  return said
end

local function declare_class(class, said)
  if type(said) ~= 'table' then said = say(nil, said ~= '' and cjson.decode(said) or {}) end
  if said.rate == nil or said.max_running == nil then
    local old = cjson.decode(call('HGET', Q .. 'class', class) or '{}')
    if said.rate == nil then said.rate = old.rate end
    if said.max_running == nil then said.max_running = old.max_running end
  end
  store_declared('class', class, said.rate, said.max_running)
end

-- Adds a job to its lane in `lanes`: a list of {class, group, lane, entries, limits of its keys}, also by lane (plain
-- ones by class). `lanes.said` has what the jobs of each class declare.
local function sort_job(lanes, class, shape, options, entry)
  local name, keyed = class, shape == 107 and cjson.decode(options)
  if keyed then
    name = class .. '\n' .. (keyed.group or '') .. '\n' .. (keyed.rate_key or '') .. '\n' .. (keyed.running_key or '')
  end
  local part = lanes[name]
  if not part then
    part = { class = class, group = keyed and keyed.group or '', lane = keyed and name or class .. PLAIN_LANE }
    part.entries = {}
    lanes[name], lanes[#lanes + 1] = part, part
  end
  part.entries[#part.entries + 1] = entry
  if keyed then
    part.keyed, lanes.said[class] = keyed, say(lanes.said[class], keyed)
  else
    lanes.said[class] = options
  end
end

-- True if a limit holds back one of the lanes.
local function any_blocked(lanes)
  for _, part in ipairs(lanes) do
    if part.keyed and call('ZSCORE', Q .. 'blocked', part.lane) then return true end
  end
  return false
end

-- Adds jobs behind all others of their lane. Only a lane that was empty has to be listed; any other keeps its head. A
-- group that is new in a ring is its last, so that only the first of a class changes the index.
local function join(part)
  local class, group, ring = part.class, part.group, Q .. 'r:' .. part.class
  many('RPUSH', Q .. 'l:' .. part.lane, part.entries)
  local head = entry_parts(part.entries[1])
  if call('ZADD', Q .. 'g:' .. class .. '\n' .. group, 'NX', head, part.lane) == 0 or call('ZSCORE', ring, group) then
    return
  end
  local before = call('ZSCORE', Q .. 'rb:' .. class, group)
  call('ZADD', ring, before or call('HINCRBY', Q .. 'n', 'turn', 1), group)
  if before then
    index_class(class)
  elseif call('ZCARD', ring) == 1 then
    call('ZADD', Q .. 'index', rank(class, head), class)
  end
end

-- `limited`: a class may have limits that other jobs declared.
local function write_lanes(lanes, limited)
  for _, part in ipairs(lanes) do
    join(part)
    woken.ready[part.class] = (woken.ready[part.class] or 0) + #part.entries
    local keyed = part.keyed
    if keyed and (keyed.rate_key or keyed.running_key) then
      store_declared(
        'lane', part.lane, keyed.rate_key and keyed.rate, keyed.running_key and keyed.max_running
      )
    end
  end
  for class, said in pairs(lanes.said) do
    if limited or said ~= '' then declare_class(class, said) end
  end
end
