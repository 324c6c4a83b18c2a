-- settle: records the outcomes of runs of one queue.
-- uses: base job lanes transitions
--
-- ARGV[3] session
-- ARGV[4..] per outcome: id, run, result with '=' before it or '', rest. The rest is '' for a success without an error,
--          else "<kind><at> <length of reason> <reason><error>"; kinds: o succeeded, t retry, d dead, c cancelled,
--          g give back, x crashed (its <at>: the number of jobs in the process that died)
-- returns {answers, aftermath}; per outcome: verdict (a accepted, y already, n refused) and state ('' unknown);
--          answers 1: all were accepted as successes
--
-- Plain successes, nearly all work, are written together.
local session, answers = ARGV[3], {}
local texts, ended, refs, results, ids, by_class = {}, {}, {}, {}, {}, {}
local forget_plain = string.format('%.0f', now + tonumber(done_ttl))
local SMALL = 257
local _, _, result_ttl = string.match(ARGV[2], '^(%d+),(-?%d+),(%d+)$')

local function keep_result(id, ttl, text)
  if text == '' then return end
  if #text <= SMALL then
    results[#results + 1], results[#results + 2] = id, string.sub(text, 2)
    return
  end
  ttl = ttl or tonumber(result_ttl)
  if ttl > 0 then call('SET', Q .. 'res:' .. id, string.sub(text, 2), 'PX', ttl) end
end

-- Records a plain success: a first run that nothing has happened to. Returns false for any other outcome.
local function plainly(id, run, result, rest, head)
  if rest ~= '' or not head or string.byte(head) ~= 104 or jobs[id] then return false end
  local first, times, holder, a, stamp, class, more =
    string.match(head, '^h(%d+) (%d+ %d+) ([^\n]*)\n((%d+) ([^\n]*))(.*)$')
  if first ~= run or holder ~= session or (more ~= '' and not string.find(more, '^' .. MORE)) then return false end
  local n = #texts
  texts[n + 1] = id
  texts[n + 2] = 'o' .. run .. ' ' .. times .. ' ' .. at .. '\n' .. a .. more
  if more ~= '' and string.find(more, '"m"', 1, true) then woken.all = true end
  ended[n + 1], ended[n + 2] = forget_plain, string.sub(stamp, 1, 16) .. id
  local ref = run .. ' ' .. id
  refs[#refs + 1], ids[#ids + 1] = ref, id
  events[#events + 1] = 'S' .. ref
  by_class[class] = (by_class[class] or 0) + 1
  keep_result(id, nil, result)
  return true
end

local ends = { o = 'succeeded', c = 'cancelled', g = 'given_back' }

local function conclude(job, run, kind, due, reason, text, problem)
  if kind == 'x' then return crash(job, run, true, tonumber(due) or 1, problem) end
  end_run(job, run, job.c and 'cancelled' or ends[kind] or 'failed', problem)
  if job.c or kind == 'c' then finish(job, 'C', 'c', job.c or (reason ~= '' and reason or 'cancelled'), run)
  elseif kind == 'o' then
    call('HDEL', Q .. 'res', job.id)
    call('DEL', Q .. 'res:' .. job.id)
    keep_result(job.id, job.o.rt, text)
    finish(job, 'S', 'o', nil, run)
  elseif kind == 'd' then
    job.f = (job.f or 0) + 1
    bury(job, reason ~= '' and reason or 'failed', run)
  elseif job.R then note('E', job.id, run)
  elseif kind == 'g' then back_in_line(job, 'G', run)
  else
    job.f = (job.f or 0) + 1
    if is_overdue(job) then bury(job, OVERDUE, run) else enqueue(job, 'T', tonumber(due), run) end
  end
end

local function write_successes()
  if #ids == 0 then return end
  many('HSET', Q .. 'head', texts)
  many('ZADD', Q .. 'ended', ended)
  many('SREM', Q .. 'h:' .. session, refs)
  if call('EXISTS', Q .. 'prog') == 1 then many('HDEL', Q .. 'prog', refs) end
  count('h', -#ids)
  count('o', #ids)
  slot('q', -#ids)
  for class, ends in pairs(by_class) do
    local task = string.match(class, '^%d+|(.-)|')
    slot('t:' .. task, -ends)
    if setting('limits') or setting('limits:' .. task) then woken.all = true end
  end
  local waited_for = call('EXISTS', Q .. 'ends') == 1 and fetch('SMISMEMBER', Q .. 'ends', ids) or {}
  for i, id in ipairs(ids) do
    if waited_for[i] == 1 then announce_end(id, 'succeeded') end
  end
  texts, ended, refs, ids, by_class = {}, {}, {}, {}, {}
end

local function read_rest(rest)
  if rest == '' then return 'o', '', '', '' end
  local kind, due, length, from = string.match(rest, '^(.)(%d*) (%d+) ()')
  local ends = from + tonumber(length)
  return kind, due, string.sub(rest, from, ends - 1), string.sub(rest, ends)
end

-- Records any other outcome. Returns the verdict and the state of the job.
local function settle_one(id, number, result, rest)
  local run, job = tonumber(number), load(id)
  for _, one in ipairs(job and job.R or {}) do
    if one[1] == run and one[2] == session then
      local kind, due, reason, problem = read_rest(rest)
      job.t = run
      if problem ~= '' then call('HSET', Q .. 'err', id, problem) end
      conclude(job, run, kind, due, reason, result, problem)
      save(job)
      return 'a', job.s
    end
  end
  call('SREM', Q .. 'v:' .. session, number .. ' ' .. id)
  return job and job.t == run and 'y' or 'n', job and job.s or ''
end

local names, seen, plain = {}, {}, 0
for i = 4, #ARGV, 4 do names[#names + 1] = ARGV[i] end
local heads = #names > 0 and fetch('HMGET', Q .. 'head', names) or {}
for i, id in ipairs(names) do
  local first = 4 * i
  local run, result, rest = ARGV[first + 1], ARGV[first + 2], ARGV[first + 3]
  if not seen[id] and plainly(id, run, result, rest, heads[i]) then
    plain = plain + 1
  else
    write_successes()
    answers[2 * i - 1], answers[2 * i] = settle_one(id, run, result, rest)
  end
  seen[id] = true
end
write_successes()
if #results > 0 then many('HSET', Q .. 'res', results) end
if plain < #names then
  for i = 1, #names do
    if not answers[2 * i] then answers[2 * i - 1], answers[2 * i] = 'a', 'o' end
  end
end
return { plain == #names and 1 or answers, aftermath() }
