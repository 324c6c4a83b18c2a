-- settle: record what runs of one queue came to.
-- uses: base job line moves
--
-- ARGV[3] session
-- ARGV[4..] per outcome: id, run, kind (o succeeded, t retry, d dead, c cancelled, g give back, x crashed), at or '',
--          result with '=' before it or '', error or '', reason or ''
-- returns {answers, aftermath}; per outcome: verdict (a accepted, y already, n refused) and state ('' unknown);
--          answers 1: all were accepted as successes
--
-- Plain successes, nearly all work, are written together.
local session, answers = ARGV[3], {}
local texts, ended, refs, results, told, by_class = {}, {}, {}, {}, {}, {}
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

-- Whether it was a plain success, and is dealt with: a first run that nothing has happened to.
local function plainly(id, run, kind, head, place)
  if kind ~= 'o' or not head or string.byte(head) ~= 104 or jobs[id] then return false end
  local first, times, holder, a, stamp, class, rest =
    string.match(head, '^h(%d+) (%d+ %d+) ([^\n]*)\n((%d+) ([^\n]*))(.*)$')
  if first ~= run or holder ~= session or rest ~= '' then return false end
  local n = #texts
  texts[n + 1] = id
  texts[n + 2] = 'o' .. run .. ' ' .. times .. ' ' .. at .. '\n' .. a
  ended[n + 1], ended[n + 2] = forget_plain, string.sub(stamp, 1, 16) .. id
  local ref = run .. ' ' .. id
  refs[#refs + 1], told[#told + 1] = ref, id
  events[#events + 1] = 'S' .. ref
  by_class[class] = (by_class[class] or 0) + 1
  if ARGV[place + 5] ~= '' then call('HSET', Q .. 'err', id, ARGV[place + 5]) end
  keep_result(id, nil, ARGV[place + 4])
  return true
end

local function conclude(job, run, kind, due, reason, text)
  if kind == 'x' then return crash(job, run, true, true) end
  end_run(job, run)
  if job.c or kind == 'c' then finish(job, 'C', 'c', job.c or (reason ~= '' and reason or 'cancelled'), run)
  elseif kind == 'o' then
    call('HDEL', Q .. 'res', job.id)
    call('DEL', Q .. 'res:' .. job.id)
    keep_result(job.id, job.o.rt, text)
    finish(job, 'S', 'o', nil, run)
  elseif kind == 'd' then bury(job, reason ~= '' and reason or 'failed', run)
  elseif job.R then note('E', job.id, run)
  elseif kind == 'g' then move(job, 'G', 'r', run)
  else
    job.f = (job.f or 0) + 1
    line_up(job, 'T', tonumber(due), run)
  end
end

local function write_successes()
  if #told == 0 then return end
  many('HSET', Q .. 'head', texts)
  many('ZADD', Q .. 'ended', ended)
  many('SREM', Q .. 'h:' .. session, refs)
  if call('EXISTS', Q .. 'prog') == 1 then many('HDEL', Q .. 'prog', refs) end
  count('h', -#told)
  count('o', #told)
  slot('q', -#told)
  for class, ends in pairs(by_class) do
    local task = string.match(class, '^%d+|(.-)|')
    slot('t:' .. task, -ends)
    if setting('limits') or setting('limits:' .. task) then woken.all = true end
  end
  local waited_for = call('EXISTS', Q .. 'ends') == 1 and fetch('SMISMEMBER', Q .. 'ends', told) or {}
  for i, id in ipairs(told) do
    if waited_for[i] == 1 then tell(id, 'succeeded') end
  end
  texts, ended, refs, told, by_class = {}, {}, {}, {}, {}
end

local names, seen = {}, {}
for i = 4, #ARGV, 7 do names[#names + 1] = ARGV[i] end
local heads = #names > 0 and fetch('HMGET', Q .. 'head', names) or {}
local all_plain = true
for i = 4, #ARGV, 7 do
  local id, kind = ARGV[i], ARGV[i + 2]
  local head = heads[(i + 3) / 7]
  if not seen[id] and plainly(id, ARGV[i + 1], kind, head, i) then
    answers[#answers + 1], answers[#answers + 2] = 'a', 'o'
  else
    write_successes()
    all_plain = false
    local run, job, held, verdict = tonumber(ARGV[i + 1]), load(id), false, 'a'
    for _, one in ipairs(job and job.R or {}) do held = held or (one[1] == run and one[2] == session) end
    if held then
      job.t = run
      if ARGV[i + 5] ~= '' then call('HSET', Q .. 'err', id, ARGV[i + 5]) end
      conclude(job, run, kind, ARGV[i + 3], ARGV[i + 6], ARGV[i + 4])
      save(job)
    else
      call('SREM', Q .. 'v:' .. session, run .. ' ' .. id)
      verdict = job and job.t == run and 'y' or 'n'
    end
    answers[#answers + 1], answers[#answers + 2] = verdict, job and job.s or ''
  end
  seen[id] = true
end
write_successes()
if #results > 0 then many('HSET', Q .. 'res', results) end
return { all_plain and 1 or answers, aftermath() }
