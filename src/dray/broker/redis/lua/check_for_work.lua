-- check_for_work: tells if a queue has work for a waiter, or unread notifications for its session. If neither, and if
-- asked to, registers the waiter as asleep in the same step.
-- uses: walk sleepers
--
-- ARGV[3] waiter, or '' to check only  [4] ms it would sleep  [5] session or ''  [6] 1 if work is of interest
-- ARGV[7..9] filter: version, tasks, priorities  [10] a mark for this sleep  [11] the number of the take that it offers,
--         or ''  [12] 1 on a cluster
-- returns {1 if there is work, 1 if there are notifications, ms until a due time or a rate brings work ('' never)}
local session, filter = ARGV[5], read_filter(7)

local function has_offer()
  for _, id in ipairs(call('ZRANGE', Q .. 'offer', 0, -1)) do
    local job = load(id)
    if can_join(job, session, filter) and may_start(job) then return true end
  end
  return false
end

local function has_work()
  if call('ZCOUNT', Q .. 'due', '-inf', now) > 0 then return true end
  unblock_due()
  for open in open_classes(filter) do
    if class_room(open.task, declared('class', open.class)) > 0 then return true end
  end
  return put_aside == BLOCK_STEP or has_offer()
end

local function has_notifications()
  local heard = {}
  for _, ref in ipairs(call('SMEMBERS', Q .. 'heard:' .. session)) do heard[ref] = true end
  for _, ref in ipairs(call('SMEMBERS', Q .. 'v:' .. session)) do
    if not heard[ref] then return true end
  end
  local asked = call('HGETALL', Q .. 'asked')
  for i = 1, #asked, 2 do
    if string.match(asked[i + 1], '^[^\n]*') == session and not heard[asked[i]] then return true end
  end
  return false
end

-- The time at which the first of the rates that hold back jobs has room again.
local function first_rate(best)
  local function consider(bucket, rate)
    if rate and tokens(bucket, rate) == 0 then
      local at = frees_at(bucket, rate)
      best = math.min(best or at, at)
    end
  end
  if setting('pause') then return best end
  for _, class in ipairs(call('ZRANGE', Q .. 'index', 0, -1)) do
    local task = string.match(class, '^%d+|(.-)|')
    if can_run(filter, class) and not setting('pause:' .. task) then
      consider('q', limits().rate)
      consider('t:' .. task, (task_limit(task, declared('class', class))))
    end
  end
  local blocked = tonumber(call('ZRANGE', Q .. 'blocked', 0, 0, 'WITHSCORES')[2])
  return blocked and blocked < 2 ^ 52 and math.min(best or blocked, blocked) or best
end

local take = offered_take()
local work = ARGV[6] == '1' and (not take or has_work())
if next(touched) then index_touched() end
local notified = session ~= '' and has_notifications()
if work or notified or ARGV[6] ~= '1' or ARGV[3] == '' then
  if ARGV[3] ~= '' then call('HDEL', Q .. 'sleep', ARGV[3]) end
  return { work and 1 or 0, notified and 1 or 0, '' }
end
local due = call('ZRANGE', Q .. 'due', 0, 0, 'WITHSCORES')[2]
local first = first_rate(tonumber(due))
local length = tonumber(ARGV[4])
if first then length = math.min(length, math.max(first - now, 1)) end
register_sleeper(ARGV[3], now + length, ARGV[10], ARGV[7], ARGV[8], ARGV[9], take)
return { 0, 0, first and math.max(first - now, 1) or '' }
