-- audit: lists the inconsistencies of one queue. Reads everything: for tests and `dray doctor`.
-- uses: places
--
-- returns sentences
local wrong = {}
local function say(...) wrong[#wrong + 1] = table.concat({ ... }) end

local standing, lines, held, counts, used, nodes = {}, {}, {}, {}, {}, {}

local function stand(id, where)
  standing[id] = standing[id] and standing[id] .. ', ' .. where or where
end

local function add(map, what) map[what] = (map[what] or 0) + 1 end

-- The jobs of a lane stand in order, its head is the first, and the number of stale entries is known.
local function read_lane(lane, head)
  local stale = 0
  for i, entry in ipairs(call('LRANGE', Q .. 'l:' .. lane, 0, -1)) do
    local _, id = entry_parts(entry)
    if is_live(lane, entry) then
      stand(id, 'ready')
      lines[id] = lane
    else
      stale = stale + 1
      if i == 1 then say('the first entry of lane ', lane, ' is stale') end
    end
  end
  for _, id in ipairs(call('ZRANGE', Q .. 'z:' .. lane, 0, -1)) do
    stand(id, 'ready')
    lines[id] = lane
  end
  if stale ~= tonumber(call('HGET', Q .. 'stale', lane) or 0) then
    say('lane ', lane, ' has ', stale, ' stale entries')
  end
  if lane_head(lane) ~= head then say('the head of lane ', lane, ' is not ', head) end
end

local function read_group(class, group, kind)
  local lanes = call('ZRANGE', Q .. 'g' .. kind .. ':' .. class .. '\n' .. group, 0, -1, 'WITHSCORES')
  if #lanes == 0 then say('an empty group ', group, ' in ', class) end
  for i = 1, #lanes, 2 do
    read_lane(lanes[i], lanes[i + 1])
    if (call('ZSCORE', Q .. 'blocked', lanes[i]) ~= false) ~= (kind == 'b') then
      say('lane ', lanes[i], ' is held back or not')
    end
  end
end

local function read_class(class)
  local group = call('ZRANGE', Q .. 'r:' .. class, 0, 0)[1]
  local head = group and call('ZRANGE', Q .. 'g:' .. class .. '\n' .. group, 0, 0, 'WITHSCORES')[2]
  if head and tonumber(call('ZSCORE', Q .. 'index', class)) ~= rank(class, head) then
    say('class ', class, ' is not at its place in the index')
  end
  for _, kind in ipairs({ '', 'b' }) do
    for _, name in ipairs(call('ZRANGE', Q .. 'r' .. kind .. ':' .. class, 0, -1)) do read_group(class, name, kind) end
  end
end

local function check_runs(job)
  for _, run in ipairs(job.runs or {}) do
    local ref = run[1] .. ' ' .. job.id
    held[ref] = run[2]
    if call('SISMEMBER', Q .. 'h:' .. run[2], ref) == 0 then say('run ', ref, ' is unknown to ', run[2]) end
    if run[1] > job.run then say('run ', ref, ' is newer than its newest') end
    add(used, 'q')
    add(used, 't:' .. job.task)
    if job.group ~= '' then add(used, 'g:' .. job.group) end
    if job.running_key ~= '' then add(used, 'k:' .. job.running_key) end
  end
end

-- Times and their indexes go together.
local function check_times(job)
  local id, state = job.id, job.state
  if (job.expires ~= nil) ~= (call('ZSCORE', Q .. 'ttl', member(job)) ~= false) then
    say(id, ' expires or does not')
  end
  if not job.undo and not finished[state] and (job.deadline ~= nil) ~= (job.options.deadline ~= nil) then
    say(id, ' lacks the moment of its deadline, or has one without a deadline')
  end
  local listed = call('ZSCORE', Q .. 'deadline', member(job)) ~= false
  if listed ~= (job.deadline ~= nil and not_started[state] == true) then
    say(id, ' is ', state, ' but listed by deadline or not')
  end
end

local function check_durable(job)
  local id, state, said = job.id, job.state, job.suspended and cjson.decode(job.suspended) or {}
  if (state == 'waiting') ~= (job.waits ~= nil or said.events ~= nil or said.parked == true) then
    say(id, ' is ', state, ' but waits or does not')
  end
  if job.suspended and (not not_started[state] or state == 'ready') then say(id, ' is suspended but ', state) end
  if (job.wake ~= nil) ~= (state == 'waiting' and call('ZSCORE', Q .. 'due', member(job)) ~= false) then
    say(id, ' is woken at some time or is not')
  end
  if finished[state] and (job.undo or job.kids) then say(id, ' is ', state, ' but not undone, or has children') end
  if job.orphaned and state ~= 'cancelled' then say(id, ' is ', state, ' but orphaned') end
  if (job.memos or 0) ~= call('LLEN', Q .. 'log:' .. id) then say(id, ' has a log of another length') end
  if (job.box ~= nil) ~= (call('EXISTS', Q .. 'box:' .. id) == 1) then say(id, ' has mail or has none') end
  if job.options.node then add(nodes, job.options.owner .. '\n' .. state) end
  if job.wake then add(nodes, '') end
end

local function check_job(job)
  local id, state, key = job.id, job.state, job.options.key
  if is_counted(state) then add(counts, state) end
  if #(job.runs or {}) > 1 then add(counts, 'second') end
  local where = place[state] ~= 'held' and place[state] or nil
  if standing[id] ~= where then say(id, ' is ', state, ' but stands in ', standing[id] or 'no place') end
  if state == 'ready' and lines[id] ~= lane_of(job) then say(id, ' stands in another lane than its own') end
  if (state == 'running') ~= (job.runs ~= nil) then say(id, ' is ', state, ' with or without runs') end
  if #(job.runs or {}) > (job.options.speculate and 2 or 1) then say(id, ' has ', #job.runs, ' valid runs') end
  check_durable(job)
  if job.offered and (state ~= 'running' or not call('ZSCORE', Q .. 'offer', id)) then
    say(id, ' is offered but ', state)
  end
  check_times(job)
  check_runs(job)
  if key and not job.options.key_ttl and not finished[state] and key_holder(key) ~= id then
    say(id, ' is unfinished but does not have its key')
  end
  standing[id] = nil
end

local function same(key, truth, what)
  local stored = call('HGETALL', Q .. key)
  for i = 1, #stored, 2 do
    if tonumber(stored[i + 1]) ~= (truth[stored[i]] or 0) then
      say(what, ' ', stored[i], ' is ', stored[i + 1], ', not ', truth[stored[i]] or 0)
    end
    truth[stored[i]] = nil
  end
  for name, number in pairs(truth) do say(what, ' ', name, ' is missing: ', number) end
end

local function check_keys()
  local keys = call('HGETALL', Q .. 'key')
  for i = 1, #keys, 2 do
    local id, ends = string.match(keys[i + 1], '^(.*)\n(%d*)$')
    local job = load(id)
    if not job then say('key ', keys[i], ' belongs to ', id, ', which does not exist')
    elseif finished[job.state] and ends == '' then say('key ', keys[i], ' belongs to ', id, ', which is ', job.state)
    end
  end
end

local function check_sessions()
  for _, session in ipairs(call('HKEYS', Q .. 's')) do
    for _, ref in ipairs(call('SMEMBERS', Q .. 'h:' .. session)) do
      if held[ref] ~= session then say('session ', session, ' holds ', ref, ', which is not so') end
    end
  end
end

for _, id in ipairs(call('ZRANGE', Q .. 'waiting', 0, -1)) do stand(id, 'waiting') end
for _, text in ipairs(call('ZRANGE', Q .. 'due', 0, -1)) do
  local job = load(id_of(text))
  if not (job and job.wake) then stand(id_of(text), 'due') end
end
for _, text in ipairs(call('ZRANGE', Q .. 'ended', 0, -1)) do stand(id_of(text), 'ended') end
for _, class in ipairs(call('ZRANGE', Q .. 'index', 0, -1)) do read_class(class) end
for _, id in ipairs(call('HKEYS', Q .. 'job')) do check_job(load(id)) end
for id in pairs(standing) do say('the queue lists ', id, ', which does not exist') end
for _, id in ipairs(call('HKEYS', Q .. 'head')) do
  if call('HEXISTS', Q .. 'job', id) == 0 then say(id, ' has a head but no body') end
end
check_sessions()
if tonumber(call('HGET', Q .. 'n', 'wakes') or 0) ~= (nodes[''] or 0) then say('the number of wakes is wrong') end
for name, number in pairs(nodes) do
  local owner, state = string.match(name, '^(.*)\n(%a+)$')
  if owner and tonumber(call('HGET', Q .. 'flow:' .. owner, state) or 0) ~= number then
    say('flow ', owner, ' does not have ', number, ' nodes that are ', state)
  end
end
same('counts', counts, 'the count of')
same('running', used, 'the slots of')
check_keys()
return wrong
