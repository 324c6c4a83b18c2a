-- settle: record what runs of one queue came to.
-- uses: base job line moves
--
-- ARGV[3] session
-- ARGV[4..] per outcome: id, run, kind (o succeeded, t retry, d dead, c cancelled, g give back, x crashed), at or '',
--          result with '=' before it or '', error or '', reason or ''
-- returns {answers, aftermath}; per outcome: verdict (a accepted, y already, n refused) and state ('' unknown)
--
-- Plain successes, nearly all work, are written together.
local session, answers = ARGV[3], {}
local ended, refs, results, told = {}, {}, {}, {}
local SMALL = 257
local _, _, result_ttl = string.match(ARGV[2], '^(%d+),(-?%d+),(%d+)$')

local function keep_result(job, text)
  if text == '' then return end
  if #text <= SMALL then
    results[#results + 1], results[#results + 2] = job.id, string.sub(text, 2)
    return
  end
  local ttl = job.o.rt or tonumber(result_ttl)
  if ttl > 0 then call('SET', Q .. 'res:' .. job.id, string.sub(text, 2), 'PX', ttl) end
end

local function succeed(job, run)
  job.s, job.t, job.z, job.R = 'o', run, now, nil
  local at = now + tonumber(done_ttl)
  ended[#ended + 1], ended[#ended + 2] = at, member(job)
  refs[#refs + 1] = run .. ' ' .. job.id
  told[#told + 1] = job.id
  use_slots(job, -1)
  slot_freed(job)
  count('h', -1)
  count('o', 1)
  note('S', job.id, run)
  save(job)
end

local function conclude(job, run, kind, at, reason, text)
  if kind == 'x' then return crash(job, run, true, true) end
  end_run(job, run)
  if job.c or kind == 'c' then finish(job, 'C', 'c', job.c or (reason ~= '' and reason or 'cancelled'), run)
  elseif kind == 'o' then
    call('HDEL', Q .. 'res', job.id)
    call('DEL', Q .. 'res:' .. job.id)
    keep_result(job, text)
    finish(job, 'S', 'o', nil, run)
  elseif kind == 'd' then bury(job, reason ~= '' and reason or 'failed', run)
  elseif job.R then note('E', job.id, run)
  elseif kind == 'g' then move(job, 'G', 'r', run)
  else
    job.f = (job.f or 0) + 1
    line_up(job, 'T', tonumber(at), run)
  end
end

local function write_successes()
  if #ended == 0 then return end
  many('ZADD', Q .. 'ended', ended)
  many('ZREM', Q .. 'h:' .. session, refs)
  if call('EXISTS', Q .. 'prog') == 1 then many('HDEL', Q .. 'prog', refs) end
  local waited_for = call('EXISTS', Q .. 'ends') == 1 and fetch('SMISMEMBER', Q .. 'ends', told) or {}
  for i, id in ipairs(told) do
    if waited_for[i] == 1 then tell(id, 'succeeded') end
  end
  ended, refs, told = {}, {}, {}
end

local names = {}
for i = 4, #ARGV, 7 do names[#names + 1] = ARGV[i] end
local heads = #names > 0 and fetch('HMGET', Q .. 'head', names) or {}
for i = 4, #ARGV, 7 do
  local id, run, kind = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2]
  local head = heads[(i + 3) / 7]
  local job = jobs[id] or (head and known(id, head)) or load(id)
  local held = false
  for _, one in ipairs(job and job.R or {}) do held = held or (one[1] == run and one[2] == session) end
  local verdict = 'a'
  if held then
    job.t = run
    if ARGV[i + 5] ~= '' then call('HSET', Q .. 'err', id, ARGV[i + 5]) end
    if kind == 'o' and not (job.c or job.of or job.R[2] or job.o.k or job.o.n) then
      succeed(job, run)
      keep_result(job, ARGV[i + 4])
    else
      write_successes()
      conclude(job, run, kind, ARGV[i + 3], ARGV[i + 6], ARGV[i + 4])
      save(job)
    end
  else
    call('SREM', Q .. 'v:' .. session, run .. ' ' .. id)
    verdict = job and job.t == run and 'y' or 'n'
  end
  answers[#answers + 1], answers[#answers + 2] = verdict, job and job.s or ''
end
write_successes()
if #results > 0 then many('HSET', Q .. 'res', results) end
return { answers, aftermath() }
