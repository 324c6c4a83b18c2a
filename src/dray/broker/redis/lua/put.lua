-- put: accepts jobs of one queue.
-- uses: drop_oldest hand_over
--
-- ARGV[3]  a token or '': jobs put under a token are put once, even if the call is repeated (see doc);
--          `i:TOKEN` STRING, for half an hour. A token begins with its time, in µs by the server's clock; one older
--          than ten minutes is refused, because its jobs may have been put under a new one (see `finish_intents`)
-- ARGV[4]  '' if all jobs are plain or simple; else JSON: place of a job, from "1" on -> on_duplicate, max_ready,
--          overflow, due, has_waits: it has dependencies, waits: those not done, ended {dependency, state, ...}: those
--          that ended badly, elsewhere: another queue has a job of this id that may be replaced
-- ARGV[5..] per job: id, body without the number in line (see job_text)
-- returns  {known, answers, aftermath}. known: 1 once the queue is enlisted. answers: 1 if all were new and are ready;
--          0 if they were put before under this token; -1 if the token is too old; the states if the fast path put
--          them; else {answer per job}: verdict, state, id, replaced or '', and the bound of a full queue, or the ms
--          until a limited one takes another, or ''
local answers = {}

local function answer(verdict, state, id, replaced, bound)
  answers[#answers + 1] = { verdict, state, id, replaced or '', bound or '' }
end

-- The bound that the job would exceed, or nil; drops another job where that is allowed.
local function full(job, extra)
  local set = limits()
  local bound = set.max_ready or extra.max_ready
  if not bound or extra.has_waits or (extra.due and extra.due > now) or job_counts().ready < bound then return nil end
  local victim = (set.overflow or extra.overflow) == 'drop-oldest' and oldest_unimportant(priority_of(job.class))
  if not victim then return bound end
  local queue = string.match(Q, ':([^:{}]*)}')
  bury(load(victim), 'dropped: ' .. queue .. ' is full (max_ready=' .. bound .. ')')
end

local function holders(job)
  local found, by_id = {}, load(job.id)
  if by_id then found[1] = by_id end
  local by_key = other_key_holder(job)
  if by_key then found[#found + 1] = load(by_key) end
  return found
end

-- True for the very same job again, from a repeated call. Only numbers and stamps differ.
local function same(id, body)
  local stored = call('HGET', Q .. 'job', id)
  return string.match(stored, '^%d+ (.)') == string.sub(body, 1, 1)
    and string.match(stored, '^%d+ .%d+%+?%d*( .*)$') == string.match(body, '^.%d+%+?%d*( .*)$')
end

local function create(job, body, extra)
  jobs[job.id] = job
  claim_key(job)
  if job.options.deadline then job.deadline = math.max(now, extra.due or 0) + job.options.deadline end
  local ended = {}
  for i = 1, #(extra.ended or {}), 2 do ended[extra.ended[i]] = extra.ended[i + 1] end
  for _, dependency in ipairs(extra.waits or {}) do
    local other = jobs[dependency]
    local how = ended[dependency] or other and finished[other.state] and other.state
    if how then post(job.id, dependency, how) end
  end
  if extra.waits and #extra.waits > 0 then
    waits.set(job, extra.waits)
    move(job, 'p', 'waiting')
  else
    enqueue(job, 'p', extra.due)
  end
  call('HSET', Q .. 'job', job.id, (job.line or 0) .. ' ' .. body)
end

-- Cancels or removes the jobs that a new one replaces. Returns the id of the last, or ''.
local function replace(others, id, elsewhere)
  local replaced = elsewhere and id or ''
  newcomer = id
  for _, other in ipairs(others) do
    if other.id == id then
      note('L', id)
      remove(other)
    elseif not_started[other.state] then
      finish(other, 'C', 'cancelled', 'replaced by ' .. public_id(id))
    end
    replaced = other.id
  end
  return replaced
end

local function put_one(id, body, extra)
  local job = fresh_job(id, nil, string.match(body, '^[^\n]*'))
  job.state = nil
  hint = job.stamp
  local others, leaves_room = holders(job), false
  for _, other in ipairs(others) do
    if other.id == id and same(id, body) then return answer('duplicate', other.state, id) end
    if extra.on_duplicate ~= 'replace' or other.run > 0 or other.options.node or not not_started[other.state] then
      return answer('duplicate', other.state, other.id)
    end
    leaves_room = leaves_room or other.state == 'ready'
  end
  local rate = not job.options.node and limits().enqueue_rate
  if rate and tokens('e', rate) == 0 then
    return answer('limited', '', id, '', math.max(1, frees_at('e', rate) - now))
  end
  local bound = not leaves_room and not job.options.node and full(job, extra)
  if bound then return answer('full', '', id, '', bound) end
  spend('e', rate, 1)
  local replaced = replace(others, id, extra.elsewhere)
  create(job, body, extra)
  newcomer = nil
  answer('created', job.state, id, replaced)
end

-- Returns the answer to a token that is too old, or was used before.
local function refuse_token(token)
  if token == '' then return nil end
  if tonumber(call('TIME')[1]) - tonumber(string.match(token, '^%d+')) / 1e6 > 600 then return -1 end
  if not call('SET', Q .. 'i:' .. token, '1', 'NX', 'EX', 1800) then return 0 end
end

-- Dependants of a job that was not accepted must not wait forever.
local function tell_of_refusals()
  hint = '~'
  for i, one in ipairs(answers) do
    local id = ARGV[2 * i + 3]
    if (one[1] == 'full' or one[1] == 'limited' or one[3] ~= id) and call('HEXISTS', Q .. 'job', id) == 0 then
      tell_dependants(id, 'not_found')
    end
  end
end

-- The last of the plain and simple jobs from ARGV[first] on that are new. `there`: ids that are taken.
local function end_of_stretch(first, there)
  local last = first - 2
  while last + 2 < #ARGV and string.byte(ARGV[last + 3]) ~= 102 and not there[ARGV[last + 2]] do
    last = last + 2
    there[ARGV[last]] = true
  end
  return last
end

local function put_stretch(first, last)
  local size = (last - first) / 2 + 1
  local sorted = sort_simple(first, last, call('HINCRBY', Q .. 'n', 'line', size) - size)
  for _, part in ipairs(sorted.lanes) do
    if part.keyed then
      unblock(part.lane)
      touched[part.class] = true
    end
  end
  write_simple(sorted, true)
  for i = first, last, 2 do
    local id = ARGV[i]
    note('p', id)
    answer('created', sorted.later and sorted.later[id] and 'scheduled' or 'ready', id)
  end
end

local function ids_there()
  local ids, there = {}, {}
  for i = 5, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
  for i, body in ipairs(#ids > 0 and fetch('HMGET', Q .. 'job', ids) or {}) do
    if body then there[ids[i]] = true end
  end
  return there
end

local function put_all()
  local extras = ARGV[4] ~= '' and cjson.decode(ARGV[4]) or {}
  local there, bounded, i = ids_there(), limits().max_ready or limits().enqueue_rate, 5
  while i < #ARGV do
    local last = bounded and i - 2 or end_of_stretch(i, there)
    if last >= i then
      put_stretch(i, last)
      i = last + 2
    else
      local extra = extras[tostring((i - 3) / 2)] or {}
      extra.due = extra.due or tonumber(string.match(ARGV[i + 1], '^s[^\n]*"due":(%d+)'))
      put_one(ARGV[i], ARGV[i + 1], extra)
      there[ARGV[i]] = true
      i = i + 2
    end
  end
end

local enlisted = call('HGET', Q .. 'n', 'known') or 0
local refused = refuse_token(ARGV[3])
if refused then return { enlisted, refused, { 0, {}, {} } } end
put_all()
tell_of_refusals()
hand_over()
return { enlisted, { answers }, aftermath() }
