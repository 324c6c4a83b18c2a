-- limits: settings of an operator, limits that jobs declare, and the room that they leave.
-- uses: joining rates job filters
--
-- `set`      HASH pause | limits | pause:TASK | limits:TASK -> settings of an operator, JSON (see pause_or_limit)
-- `rate`     ZSET q | t:TASK | k:KEY | e (jobs accepted) -> the GCRA time in µs up to which the rate is used
-- `class`, `lane` (see order) and `running` (see prelude) exist only while they have jobs.
local MANY = 2 ^ 30
local settings, decoded

local function setting(name)
  if not settings then
    settings, decoded = {}, {}
    local stored = call('HGETALL', Q .. 'set')
    for i = 1, #stored, 2 do settings[stored[i]] = stored[i + 1] end
  end
  return settings[name]
end

local function limits(task)
  local name = task and 'limits:' .. task or 'limits'
  local stored = setting(name)
  decoded[name] = decoded[name] or stored and cjson.decode(stored) or {}
  return decoded[name]
end

local function paused(task)
  return setting('pause') or setting('pause:' .. task)
end

local function declared(key, field)
  local stored = call('HGET', Q .. key, field)
  return stored and cjson.decode(stored) or {}
end

-- The limits of a job that count for its task as a whole, and those that count for its keys.
local function said_by_job(job)
  local rate, most = job.options.rate, job.options.max_running
  local by_class = { rate = job.rate_key == '' and rate or nil, max_running = job.running_key == '' and most or nil }
  local by_key = { rate = job.rate_key ~= '' and rate or nil, max_running = job.running_key ~= '' and most or nil }
  return by_class, by_key
end

local function declare(job)
  declare_class(job.class, say(nil, job.options))
  local _, by_key = said_by_job(job)
  if job.rate_key ~= '' or job.running_key ~= '' then
    store_declared('lane', lane_of(job), by_key.rate, by_key.max_running)
  end
end

local tats = {}
local function used_until(bucket, rate)
  tats[bucket] = tats[bucket] or tonumber(call('ZSCORE', Q .. 'rate', bucket) or 0)
  return gcra_used(tats[bucket], rate, now * 1000)
end

local function tokens(bucket, rate)
  if not rate then return MANY end
  return gcra_starts(used_until(bucket, rate), rate, now * 1000)
end

local function frees_at(bucket, rate)
  return math.max(now, math.ceil((used_until(bucket, rate) - (rate[2] - 1) * rate[1]) / 1000))
end

local function room_by(what, most)
  if not most then return MANY end
  return math.max(0, most - tonumber(call('HGET', Q .. 'running', what) or 0) - (slots[what] or 0))
end

-- A limit set by the operator wins over one that jobs declare.
local function task_limit(task, said)
  local own = limits(task)
  return own.rate or said.rate, own.max_running or said.max_running
end

local function class_room(task, said)
  local queue = limits()
  local rate, most = task_limit(task, said)
  return math.min(
    room_by('q', queue.max_running), room_by('t:' .. task, most), tokens('q', queue.rate), tokens('t:' .. task, rate)
  )
end

-- The number of jobs that the limits of the group and the keys let start; if none, until when, and the cause.
local function lane_room(group, rate_key, running_key, said)
  local room = MANY
  if group ~= '' then
    room = room_by('g:' .. group, limits().group_running)
    if room == 0 then return 0, 2 ^ 52, 'g:' .. group end
  end
  if running_key ~= '' then
    room = math.min(room, room_by('k:' .. running_key, said.max_running))
    if room == 0 then return 0, 2 ^ 52, 'k:' .. running_key end
  end
  if rate_key ~= '' and said.rate then
    room = math.min(room, tokens('k:' .. rate_key, said.rate))
    if room == 0 then return 0, frees_at('k:' .. rate_key, said.rate), 'rk:' .. rate_key end
  end
  return room
end

-- True if the limits let one more run of a job start. Also returns the limits that it declares.
local function may_start(job)
  local by_class, by_key = said_by_job(job)
  local room = lane_room(job.group, job.rate_key, job.running_key, by_key)
  return room > 0 and class_room(job.task, by_class) > 0, by_class, by_key
end

-- True if a session may start a second run of an offered job.
local function can_join(job, session, filter)
  for _, run in ipairs(job.runs or {}) do
    if run[2] == session then return false end
  end
  return can_run(filter, job.class) and not paused(job.task) and not is_overdue(job)
end
