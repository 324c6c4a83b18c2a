-- sleepers: registers sleeping waiters (see wakes and takers).
-- uses: filters
--
-- `sleep` HASH waiter -> "until=<ms> mark=<number> version=<n> priorities=<list> tasks=<list>": when it checks again by
--         itself, the mark of its sleep here, and its filter. A list is ",a,b," or empty, which means any.
--         One that offers its next take has behind it " request=<its number> cluster=<0 or 1> session=<name>".

local function sleeper_until(stored)
  return tonumber(string.match(stored, '^until=(%d+)'))
end

local function register_sleeper(waiter, until_, mark, version, tasks, priorities, take)
  call('HSET', Q .. 'sleep', waiter, string.format(
    'until=%.0f mark=%s version=%s priorities=%s tasks=%s%s', until_, mark, version, priorities, tasks, take
  ))
end
