-- audit: lists the inconsistencies of one queue. Reads everything: for tests and `dray doctor`.
-- uses: base job lanes
--
-- returns sentences
local wrong = {}
local function say(...) wrong[#wrong + 1] = table.concat({ ... }) end

local standing, lines = {}, {}
local function stand(id, where)
  standing[id] = standing[id] and standing[id] .. ', ' .. where or where
end
for _, id in ipairs(call('ZRANGE', Q .. 'waiting', 0, -1)) do stand(id, 'w') end
for _, text in ipairs(call('ZRANGE', Q .. 'due', 0, -1)) do stand(id_of(text), 'd') end
for _, text in ipairs(call('ZRANGE', Q .. 'ended', 0, -1)) do stand(id_of(text), 'e') end
for _, class in ipairs(call('ZRANGE', Q .. 'index', 0, -1)) do
  local group = call('ZRANGE', Q .. 'r:' .. class, 0, 0)[1]
  local head = group and call('ZRANGE', Q .. 'g:' .. class .. '\n' .. group, 0, 0, 'WITHSCORES')[2]
  if head and tonumber(call('ZSCORE', Q .. 'index', class)) ~= rank(class, head) then
    say('class ', class, ' is not at its place in the index')
  end
  for _, kind in ipairs({ '', 'b' }) do
    for _, group in ipairs(call('ZRANGE', Q .. 'r' .. kind .. ':' .. class, 0, -1)) do
      local lanes = call('ZRANGE', Q .. 'g' .. kind .. ':' .. class .. '\n' .. group, 0, -1, 'WITHSCORES')
      if #lanes == 0 then say('an empty group ', group, ' in ', class) end
      for i = 1, #lanes, 2 do
        local ids = call('ZRANGE', Q .. 'l:' .. lanes[i], 0, -1, 'WITHSCORES')
        if ids[2] ~= lanes[i + 1] then say('the head of lane ', lanes[i], ' is not ', lanes[i + 1]) end
        if (call('ZSCORE', Q .. 'blocked', lanes[i]) ~= false) ~= (kind == 'b') then
          say('lane ', lanes[i], ' is held back or not')
        end
        for j = 1, #ids, 2 do
          stand(ids[j], 'r')
          lines[ids[j]] = lanes[i]
        end
      end
    end
  end
end

local counts, running = {}, {}
local function add(map, what) map[what] = (map[what] or 0) + 1 end
local places = { w = 'w', s = 'd', t = 'd', r = 'r', o = 'e', d = 'e', c = 'e' }
local held = {}
for _, id in ipairs(call('HKEYS', Q .. 'job')) do
  local job = load(id)
  add(counts, job.s)
  if standing[id] ~= places[job.s] then
    say(id, ' is ', words[job.s] or job.s, ' but stands in ', standing[id] or 'no place')
  end
  if job.s == 'r' and lines[id] ~= lane_of(job) then say(id, ' stands in another lane than its own') end
  if (job.s == 'h') ~= (job.R ~= nil) then say(id, ' is ', words[job.s], ' with or without runs') end
  if #(job.R or {}) > (job.o.s and 2 or 1) then say(id, ' has ', #job.R, ' valid runs') end
  if (job.s == 'w') ~= (job.w ~= nil) then say(id, ' is ', words[job.s], ' but waits or does not') end
  if job.of and (job.s ~= 'h' or not call('ZSCORE', Q .. 'offer', id)) then say(id, ' is offered but ', job.s) end
  if (job.e ~= nil) ~= (call('ZSCORE', Q .. 'ttl', member(job)) ~= false) then say(id, ' expires or does not') end
  if (job.dl ~= nil) ~= (job.o.dl ~= nil) then
    say(id, ' lacks the moment of its deadline, or has one without a deadline')
  end
  local listed = call('ZSCORE', Q .. 'deadline', member(job)) ~= false
  if listed ~= (job.dl ~= nil and not_started[job.s] == true) then
    say(id, ' is ', words[job.s], ' but listed by deadline or not')
  end
  for _, run in ipairs(job.R or {}) do
    local ref = run[1] .. ' ' .. id
    held[ref] = run[2]
    if call('SISMEMBER', Q .. 'h:' .. run[2], ref) == 0 then say('run ', ref, ' is unknown to ', run[2]) end
    if run[1] > job.r then say('run ', ref, ' is newer than its newest') end
    add(running, 'q')
    add(running, 't:' .. job.task)
    if job.group ~= '' then add(running, 'g:' .. job.group) end
    if job.running_key ~= '' then add(running, 'k:' .. job.running_key) end
  end
  if job.o.k and not job.o.kt and not finished[job.s] then
    local stored = call('HGET', Q .. 'key', job.o.k) or ''
    if string.match(stored, '^(.*)\n') ~= id then say(id, ' is unfinished but does not have its key') end
  end
  standing[id] = nil
end
for id in pairs(standing) do say('the queue lists ', id, ', which does not exist') end
for _, id in ipairs(call('HKEYS', Q .. 'head')) do
  if call('HEXISTS', Q .. 'job', id) == 0 then say(id, ' has a head but no body') end
end
for _, session in ipairs(call('HKEYS', Q .. 's')) do
  for _, ref in ipairs(call('SMEMBERS', Q .. 'h:' .. session)) do
    if held[ref] ~= session then say('session ', session, ' holds ', ref, ', which is not so') end
  end
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
same('counts', counts, 'the count of')
same('running', running, 'the slots of')
local keys = call('HGETALL', Q .. 'key')
for i = 1, #keys, 2 do
  local id, ends = string.match(keys[i + 1], '^(.*)\n(%d*)$')
  local job = load(id)
  if not job then say('key ', keys[i], ' belongs to ', id, ', which does not exist')
  elseif finished[job.s] and ends == '' then say('key ', keys[i], ' belongs to ', id, ', which is ', words[job.s])
  end
end
return wrong
