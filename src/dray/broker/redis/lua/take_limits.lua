-- take_limits: counts the limits of the queue and of tasks in the fast path of take; as `class_room` and `spend_start`.
-- uses: prelude rates
-- as a function
--
-- take_limits(settings of an operator, spent: bucket -> the time up to which this call uses its rate) returns room_of,
-- which returns the number of wanted jobs of a class that the limits let start, and count_starts.
local set, spent = ...
local started = {}

-- The time up to which a rate is used, with the starts of this call.
local function used_so_far(what, rate)
  local tat = spent[what] or tonumber(call('ZSCORE', Q .. 'rate', what) or 0)
  return gcra_used(tat, rate, now * 1000)
end

-- The number of `most` jobs that one limit lets start.
local function within(most, what, top, rate)
  if top then
    local running = (call('HGET', Q .. 'running', what) or 0) + (started[what] or 0)
    most = math.min(most, math.max(0, top - running))
  end
  if not rate then return most end
  return math.min(most, gcra_starts(used_so_far(what, rate), rate, now * 1000))
end

local function room_of(part, want)
  local stored, queue = call('HGET', Q .. 'class', part.class), set.limits or {}
  local said, own = stored and cjson.decode(stored) or {}, set['limits:' .. part.task] or {}
  part.rate = own.rate or said.rate
  local most = within(want, 'q', queue.max_running, queue.rate)
  return within(most, 't:' .. part.task, own.max_running or said.max_running, part.rate)
end

local function count_some(what, rate, starts)
  started[what] = (started[what] or 0) + starts
  if rate then spent[what] = used_so_far(what, rate) + starts * rate[1] end
end

local function count_starts(part)
  count_some('q', (set.limits or {}).rate, part.took)
  count_some('t:' .. part.task, part.rate, part.took)
end

return room_of, count_starts
