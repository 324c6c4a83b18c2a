-- walk: the classes and lanes that have jobs to hand out, in the order of taking; spends rates.
-- uses: lanes
local BLOCK_STEP, CLASS_STEP = 500, 64
local put_aside = 0

-- Jobs with one rate key may declare different rates, so the lanes that it holds back are unblocked.
local function spend(bucket, rate, starts)
  if not rate or starts == 0 then return end
  tats[bucket] = used_until(bucket, rate) + starts * rate[1]
  call('ZADD', Q .. 'rate', string.format('%.0f', tats[bucket]), bucket)
  if string.byte(bucket) == 107 then unblock_cause('r' .. bucket) end
end

local function spend_start(task, rate_key, class_said, lane_said, starts)
  spend('q', limits().rate, starts)
  spend('t:' .. task, (task_limit(task, class_said)), starts)
  if rate_key ~= '' then spend('k:' .. rate_key, lane_said.rate, starts) end
end

local function lane_said(rate_key, running_key, lane)
  if rate_key == '' and running_key == '' then return {} end
  return declared('lane', lane)
end

-- The lane with the oldest head, of the group whose turn it is. only: no other group of the class is free; sole: nor is
-- another lane. `last` is the lane before: the only group stays that, unless a rate was spent that held back others.
-- Lanes that are held back are put aside, so that each is met once, and BLOCK_STEP of them per script: the next take
-- goes on.
local function free_lane(class, last)
  while put_aside < BLOCK_STEP do
    local same = last and last.only and last.rate_key == ''
    local groups = same and { last.group } or call('ZRANGE', Q .. 'r:' .. class, 0, 1)
    local group = groups[1]
    local first = group and call('ZRANGE', Q .. 'g:' .. class .. '\n' .. group, 0, 1, 'WITHSCORES') or {}
    local lane = first[1]
    if not lane then return nil end
    local free = { class = class, group = group, lane = lane, head = tonumber(first[2]), room = MANY, said = {} }
    free.rate_key, free.running_key, free.only, free.sole = '', '', not groups[2], not groups[2] and not first[3]
    if is_plain_lane(lane) then return free end
    local _, _, rate_key, running_key = lane_parts(lane)
    local until_, cause
    free.said, free.rate_key, free.running_key = lane_said(rate_key, running_key, lane), rate_key, running_key
    free.room, until_, cause = lane_room(group, rate_key, running_key, free.said)
    if free.room > 0 then return free end
    block(lane, until_, cause)
    put_aside = put_aside + 1
  end
end

local function in_order(one, other)
  if one.priority ~= other.priority then return one.priority < other.priority end
  return one.head < other.head
end

-- Iterates over the classes that the filter allows and that have a free lane, in the order of taking. They are looked
-- at in steps: with many tasks a call meets only those whose jobs it hands out.
local function open_classes(filter)
  if next(touched) then index_touched() end
  local classes, met, open, given = setting('pause') and {} or call('ZRANGE', Q .. 'index', 0, -1), 0, {}, 0
  local function look()
    open, given = {}, 0
    while #open < CLASS_STEP and met < #classes do
      met = met + 1
      local priority, task = string.match(classes[met], '^(%d+)|(.-)|')
      local free = can_run(filter, classes[met]) and not setting('pause:' .. task) and free_lane(classes[met])
      if free then
        free.task, free.priority = task, tonumber(priority)
        open[#open + 1] = free
      end
    end
    table.sort(open, in_order)
  end
  return function()
    if given == #open then look() end
    given = given + 1
    return open[given]
  end
end
