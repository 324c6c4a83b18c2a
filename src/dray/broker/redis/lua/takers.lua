-- takers: gives a run to a sleeper, as the answer to the take that it offers.
-- uses: filters
-- as a function
--
-- takers() returns may_go_over and give_to_sleeper.
-- `handed` ZSET "run id" -> when: runs that were handed over and are not confirmed
local HAND_OVER_MAX = 65536 -- dray.broker.interest

-- True if a job with this body may be handed over, as far as its queue goes, other ready jobs aside.
local function may_go_over(body)
  return #body - (string.find(body, '\n', 1, true) or 0) <= HAND_OVER_MAX
    and call('EXISTS', Q .. 'set', Q .. 'offer') == 0 and call('ZCOUNT', Q .. 'due', '-inf', at) == 0
end

-- The session and request of a sleeper that may have a job, and whether it is on a cluster.
local function may_have(stored, filter, class)
  local request, cluster, session = string.match(stored, ' request=(%d+) cluster=(%d) session=(.*)$')
  if not request or not can_run(filter, class) then return nil end
  local lease = call('HGET', Q .. 's', session)
  local last = tonumber(string.match(call('HGET', Q .. 't', session) or '0', '^%d+'))
  if not lease or now >= tonumber(string.match(lease, 'expires=(%d+)')) then return nil end
  if last > 0 and last < tonumber(request) then return session, request, cluster == '1' end
end

-- Strikes a sleeper off and sends it the job: "j", the mark of its sleep, the time and two lengths in the first line.
-- False if it is dead: nothing listens. On a cluster a node does not know the subscribers of the others.
local function send(waiter, mark, cluster, id, facts, body)
  call('HDEL', Q .. 'sleep', waiter)
  local first_line = table.concat({ 'j' .. mark, at, #id, #facts }, ' ')
  return call('PUBLISH', channel('b', waiter), first_line .. '\n' .. id .. facts .. body) > 0 or cluster
end

-- Looks at a few sleepers. Returns the session that has the run now, or nil.
local function give_to_sleeper(class, id, run, facts, body)
  looked_at = call('HRANDFIELD', Q .. 'sleep', FEW, 'WITHVALUES')
  for i = 1, #looked_at, 2 do
    local filter = sleeper_filter(looked_at[i + 1])
    local session, request, cluster = may_have(looked_at[i + 1], filter, class)
    if session and send(looked_at[i], filter.mark, cluster, id, facts, body) then
      local ref = run .. ' ' .. id
      call('SADD', Q .. 'h:' .. session, ref)
      call('HSET', Q .. 't', session, request .. ' 0\n' .. ref)
      call('ZADD', Q .. 'handed', at, ref)
      return session
    end
  end
end

return may_go_over, give_to_sleeper
