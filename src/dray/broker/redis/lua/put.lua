-- put: accepts jobs of one queue.
-- uses: base job lanes transitions
--
-- ARGV[3]  a token or '': jobs put under a token are put once, even if the call is repeated (see doc);
--          `i:TOKEN` STRING, for half an hour. A token begins with its time, in µs by the server's clock; one older
--          than ten minutes is refused, because its jobs may have been put under a new one (see `finish_intents`)
-- ARGV[4..] per job: id, body, extra. Extra is the class of a plain job (no key, bound, limit, group, delay, ttl,
--          deadline or dependency); "class\n{options}" of a simple job, which has limits of its task or a due time;
--          else JSON: dup on_duplicate, mx max_ready, ov overflow, d due, wf it has dependencies, w those not done, we
--          {dependency, state} of those that ended badly, oq another queue has a job of this id that may be replaced
-- returns  {known, answers, aftermath}. known: 1 once the queue is enlisted. answers: 1 if all were new and are ready;
--          a text if all were new, with r or s (ready or scheduled) per job; 0 if they were put before under this
--          token; -1 if the token is too old; else per job: verdict (c created, d duplicate, f full, l limited), state,
--          id, replaced or '', and the bound of a full queue, or the ms until a limited one takes another, or ''
--
-- Nearly all jobs are plain: these are written together. The others take the transitions one by one, in order.
local answers, plain, all_plain = {}, {}, true

local function answer(verdict, state, id, replaced, bound)
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3] = verdict, state, id
  answers[n + 4], answers[n + 5] = replaced or '', bound or ''
end

local function flush()
  if #plain == 0 then return end
  local line = call('HINCRBY', Q .. 'n', 'line', #plain / 3) - #plain / 3
  local bodies, lanes, order, said = {}, {}, {}, {}
  for i = 1, #plain, 3 do
    local id, class, limits_said = plain[i], string.match(plain[i + 2], '^([^\n]*)\n?(.*)$')
    said[class] = limits_said
    local entries = lanes[class]
    if not entries then
      entries = {}
      lanes[class], order[#order + 1] = entries, class
    end
    line = line + 1
    entries[#entries + 1], entries[#entries + 2] = line, id
    bodies[#bodies + 1], bodies[#bodies + 2] = id, plain[i + 1]
    note('p', id)
  end
  many('HSET', Q .. 'job', bodies)
  for _, class in ipairs(order) do
    local most = said[class] ~= '' and cjson.decode(said[class]) or {}
    store_declared('class', class, most.r, most.m)
    lane_add(class, '', class .. '\n\n\n', lanes[class])
  end
  count('r', #plain / 3)
  plain = {}
end

local function ready_now()
  return tonumber(call('HGET', Q .. 'counts', 'r') or 0) + (counted.r or 0)
end

-- The job that drop-oldest drops: the first in line of the lowest priority that is not above `priority`.
local function oldest_unimportant(priority)
  local best, first, id
  for _, class in ipairs(call('ZREVRANGEBYSCORE', Q .. 'index', '+inf', priority * PRIORITY)) do
    if best and priority_of(class) < best then break end
    best = priority_of(class)
    for _, lane in ipairs(all_lanes(class)) do
      local head = call('ZRANGE', Q .. 'l:' .. lane, 0, 0, 'WITHSCORES')
      if not first or tonumber(head[2]) < first then first, id = tonumber(head[2]), head[1] end
    end
  end
  return id
end

-- The bound that the job would exceed, or nil; drops another job where that is allowed.
local function full(job, extra)
  local set = limits()
  local bound = set.x or extra.mx
  if not bound or extra.wf or (extra.d and extra.d > now) or ready_now() < bound then return nil end
  local victim = (set.o or extra.ov) == 'drop-oldest' and oldest_unimportant(priority_of(job.class))
  if not victim then return bound end
  local queue = string.match(Q, ':([^:{}]*)}')
  bury(load(victim), 'dropped: ' .. queue .. ' is full (max_ready=' .. bound .. ')')
end

local function holders(job)
  local found, by_id = {}, load(job.id)
  if by_id then found[1] = by_id end
  if job.o.k then
    local id, ends = key_holder(job.o.k)
    if id and id ~= job.id and (not ends or now < ends) then found[#found + 1] = load(id) end
  end
  return found
end

-- True for the very same job again, from a repeated call. Only the stamps differ.
local function same(id, body)
  local stored = call('HGET', Q .. 'job', id)
  local function rest(of) return string.match(tail(of), '^%d+ (.*)$') end
  return envelope(stored) == envelope(body) and rest(stored) == rest(body)
end

local function create(job, body, extra)
  call('HSET', Q .. 'job', job.id, body)
  jobs[job.id] = job
  claim_key(job)
  if job.o.dl then job.dl = math.max(now, extra.d or 0) + job.o.dl end
  local ended = {}
  for i = 1, #(extra.we or {}), 2 do ended[extra.we[i]] = extra.we[i + 1] end
  for _, dependency in ipairs(extra.w or {}) do
    local other = jobs[dependency]
    local how = ended[dependency] or other and finished[other.s] and words[other.s]
    if how then post(job.id, dependency, how) end
  end
  if extra.w and #extra.w > 0 then
    job.w = extra.w
    move(job, 'p', 'w')
  else
    enqueue(job, 'p', extra.d)
  end
end

local function put_one(id, body, extra)
  local job = attributes({ id = id, r = 0, a = tail(body) })
  hint = job.stamp
  local others = holders(job)
  for _, other in ipairs(others) do
    if other.id == id and same(id, body) then return answer('d', other.s, id) end
    if extra.dup ~= 'replace' or other.r > 0 or not not_started[other.s] then
      return answer('d', other.s, other.id)
    end
  end
  local leaves_room = false
  for _, other in ipairs(others) do leaves_room = leaves_room or other.s == 'r' end
  local rate = limits().e
  if rate and tokens('e', rate) == 0 then
    return answer('l', '', id, '', math.max(1, frees_at('e', rate) - now))
  end
  local bound = not leaves_room and full(job, extra)
  if bound then return answer('f', '', id, '', bound) end
  spend('e', rate, 1)
  local replaced = extra.oq and id or ''
  newcomer = id
  for _, other in ipairs(others) do
    if other.id == id then
      note('L', id)
      remove(other)
    elseif not_started[other.s] then
      finish(other, 'C', 'c', 'replaced by ' .. id)
    end
    replaced = other.id
  end
  create(job, body, extra)
  newcomer = nil
  answer('c', job.s, id, replaced)
end

local first = redis.call('HGET', Q .. 'n', 'known')
if ARGV[3] ~= '' then
  if tonumber(call('TIME')[1]) - tonumber(string.match(ARGV[3], '^%d+')) / 1e6 > 600 then
    return { first or 0, -1, { 0, {}, {} } }
  end
  if not call('SET', Q .. 'i:' .. ARGV[3], '1', 'NX', 'EX', 1800) then
    return { first or 0, 0, { 0, {}, {} } }
  end
end
local bounded = limits().x or limits().e
local ids = {}
for i = 4, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
local there = #ids > 0 and fetch('HMGET', Q .. 'job', ids) or {}
local seen = {}
for i = 4, #ARGV, 3 do
  local id, extra = ARGV[i], ARGV[i + 2]
  local json = string.byte(extra) == 123
  local due = not json and tonumber(string.match(extra, '"d":(%d+)'))
  if json or due or bounded or seen[id] or there[(i - 1) / 3] then
    if all_plain then
      all_plain = false
      for j = 1, #plain, 3 do answer('c', 'r', plain[j]) end
    end
    flush()
    put_one(id, ARGV[i + 1], json and cjson.decode(extra) or { d = due or nil })
  else
    plain[#plain + 1], plain[#plain + 2], plain[#plain + 3] = id, ARGV[i + 1], extra
    if not all_plain then answer('c', 'r', id) end
  end
  seen[id] = true
end
flush()
-- Dependants of a job that was not accepted must not wait forever.
hint = '~'
for i = 1, #answers, 5 do
  local id = ids[(i + 4) / 5]
  if (answers[i] == 'f' or answers[i] == 'l' or answers[i + 2] ~= id) and call('HEXISTS', Q .. 'job', id) == 0 then
    tell_dependants(id, 'not_found')
  end
end
return { first or 0, all_plain and 1 or answers, aftermath() }
