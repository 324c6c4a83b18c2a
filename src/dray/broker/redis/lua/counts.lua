-- counts: the number of jobs per state. Most follow from the sizes of places, so that usual moves count nothing.
-- uses: tally
local function job_counts()
  local stored, more = call('HMGET', Q .. 'counts', 'retrying', 'dead', 'cancelled', 'second'), {}
  for i, name in ipairs({ 'retrying', 'dead', 'cancelled', 'second' }) do
    more[name] = (tonumber(stored[i] or 0) or 0) + (counted[name] or 0)
  end
  local waiting, due, ended = call('ZCARD', Q .. 'waiting'), call('ZCARD', Q .. 'due'), call('ZCARD', Q .. 'ended')
  due = due - tonumber(call('HGET', Q .. 'n', 'wakes') or 0) -- waiting jobs that a moment wakes stand there too
  local held = (tonumber(call('HGET', Q .. 'running', 'q') or 0) or 0) + (slots.q or 0)
  local found = {
    waiting = waiting, retrying = more.retrying, scheduled = due - more.retrying, running = held - more.second,
    dead = more.dead, cancelled = more.cancelled, succeeded = ended - more.dead - more.cancelled,
  }
  found.ready = call('HLEN', Q .. 'job') - waiting - due - ended - found.running
  return found
end

-- As a reply: state, number, ...
local function counts_reply()
  local reply = {}
  for state, number in pairs(job_counts()) do
    if number > 0 then reply[#reply + 1], reply[#reply + 2] = state, tostring(number) end
  end
  return reply
end
