-- wakes: wakes sleepers. It is a part of its own because mostly none sleeps, or nothing became ready.
-- uses: filters
-- as a function
--
-- wakes() wakes those whom the changes of a script concern: `woken`.
-- Strikes a sleeper off and sends it a message. False if it was struck off before, or is dead: nothing listens.
local function wake(waiter, message)
  if call('HDEL', Q .. 'sleep', waiter) == 0 then return false end
  return call('PUBLISH', channel('b', waiter), message) > 0
end

local function wake_some(asleep, class, jobs)
  for i = 1, #asleep, 2 do
    if jobs <= 0 then return 0 end
    local filter = sleeper_filter(asleep[i + 1])
    if filter and can_run(filter, class) and wake(asleep[i], 'w' .. filter.mark) then jobs = jobs - 1 end
  end
  return jobs
end

-- Wakes as many sleepers as there are jobs of a class, of those that can run it ("w" and the mark: there is work). A
-- few are looked at first: mostly any can, and the number of sleepers must not make a put slow.
local function wake_for_class(class, jobs)
  if jobs <= FEW then
    local some = looked_at or call('HRANDFIELD', Q .. 'sleep', FEW, 'WITHVALUES')
    looked_at = nil
    jobs = wake_some(some, class, jobs)
    if #some < 2 * FEW then return end
  end
  if jobs > 0 then wake_some(call('HGETALL', Q .. 'sleep'), class, jobs) end
end

-- Wakes the sleepers whose timeout is after `due`; all of them if `due` is nil ("c" and the mark: check again).
local function wake_before(due)
  local asleep = call('HGETALL', Q .. 'sleep')
  for i = 1, #asleep, 2 do
    local until_, mark = string.match(asleep[i + 1], '^until=(%d+) mark=(%d+)')
    if not due or not until_ or tonumber(until_) > due then wake(asleep[i], 'c' .. (mark or 0)) end
  end
end

-- Wakes one sleeper per job that became ready, of those that can run it.
for class, jobs in pairs(woken.ready) do wake_for_class(class, jobs) end
if woken.all then wake_before() elseif woken.due then wake_before(woken.due) end
