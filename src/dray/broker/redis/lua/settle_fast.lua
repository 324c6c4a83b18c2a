-- settle_fast: the fast path of settle, for successes and retries of jobs that are not full. Outcomes are settled in
-- order, up to the first that is another one: there the full script goes on, which comes back here for those behind it.
-- uses: outcomes retention watchers settle_retry
--
-- Takes and returns the same as settle. A watcher of a job that listens is sent what a read would show, unless that is
-- long: behind "queue\nid\n" (see watchers) "now length-of-head length-of-body\n<head><body><result as given>".
local FINISHED = ' finished=' .. at .. '\n'

local function keep_result(results, id, ttl, text)
  if text == '' then return end
  if #text <= 257 then
    results[#results + 1], results[#results + 2] = id, string.sub(text, 2)
  elseif ttl == '' then
    call('SET', Q .. 'res:' .. id, string.sub(text, 2))
  elseif ttl ~= '0' then
    call('SET', Q .. 'res:' .. id, string.sub(text, 2), 'PX', ttl)
  end
end

-- Reads an outcome into `batch`. False if it is not a success of a simple job.
local function read_success(batch, i, forget)
  local id, run = ARGV[4 * i], ARGV[4 * i + 1]
  if ARGV[4 * i + 3] ~= '' then return false end
  local facts, header = held_run(i)
  if not facts then return false end
  if run ~= '1' or string.find(header, '\n', 1, true) then
    header = with_past(header, run, facts, 'succeeded', '""')
    if not header then return false end
  end
  local n = #batch.heads
  batch.heads[n + 1], batch.heads[n + 2] = id, 'succeeded' .. facts .. FINISHED .. header
  batch.ended[n + 1], batch.ended[n + 2] = forget, string.sub(header, 2, 17) .. id
  batch.refs[#batch.refs + 1] = run .. ' ' .. id
  local task = string.match(header, '|(.-)|')
  batch.tasks[task] = (batch.tasks[task] or 0) + 1
  if string.byte(header) ~= 112 then free_slots(header) end
  keep_result(batch.results, id, result_ttl, ARGV[4 * i + 2])
  return true
end

local function tell_success(id, head, result)
  local body, whole = call('HGET', Q .. 'job', id), ''
  if body and #body + #result <= 65536 then
    whole = at .. ' ' .. #head .. ' ' .. #body .. '\n' .. head .. body .. result
  end
  tell_watchers(id, whole)
  call('SREM', Q .. 'ends', id)
end

local function write_successes(batch, first)
  many('HSET', Q .. 'head', batch.heads)
  many('ZADD', Q .. 'ended', batch.ended)
  if #batch.results > 0 then many('HSET', Q .. 'res', batch.results) end
  free_runs(batch)
  events[#events + 1] = 'S' .. table.concat(batch.refs, '\nS')
  joined = joined + #batch.refs - 1
  for i = first, watched and first + #batch.refs - 1 or 0 do
    if watched[i] then tell_success(ARGV[4 * i], batch.heads[2 * (i - first + 1)], ARGV[4 * i + 2]) end
  end
end

-- Settles the successes of simple jobs from the next outcome on.
local function settle_successes()
  local batch = { heads = {}, ended = {}, refs = {}, results = {}, tasks = {} }
  local first, forget = settled + 1, string.format('%.0f', now + done_ttl)
  while settled < #ids and read_success(batch, settled + 1, forget) do
    settled = settled + 1
    seen[ARGV[4 * settled]] = 'succeeded'
  end
  if #batch.refs > 0 then write_successes(batch, first) end
end

-- Settles successes and retries in turns, up to an outcome that is neither.
local function settle_simple()
  repeat
    local before = settled
    settle_successes()
    if settled < #ids and ARGV[4 * settled + 7] ~= '' then settle_retry() end
  until settled == before or settled == #ids
end

-- 1 if all were successes; else verdict and state of each.
local function simple_answers()
  local answers, all = {}, true
  for i, id in ipairs(ids) do
    answers[2 * i - 1], answers[2 * i] = 'accepted', seen[id]
    all = all and seen[id] == 'succeeded'
  end
  return all and 1 or answers
end

read_heads()
settle_simple()
if settled == #ids and settled > 0 and not (freed and call('EXISTS', Q .. 'blocked') == 1) then
  close()
  return { simple_answers(), { 0, {}, {} } }
end
