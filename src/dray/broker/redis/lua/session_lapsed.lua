-- session_lapsed: lists sessions past their lease, and those whose end is not done yet. Called by sweep.
-- uses: namespace
--
-- After the clock went back, no lease ends later than if it had been renewed just now.
--
-- ARGV[1] now
-- returns {late names in the order of their opening, moved: {name, epoch, lease, queues}, ending: {name,
--         epoch, suspect, queues}}
local late, moved, ending = {}, {}, {}
local clock = tonumber(call('GET', N .. 'clock') or 0)
local all = call('HGETALL', N .. 'session')
for i = 1, #all, 2 do
  local session = read_lease(all[i + 1])
  if now < clock and session.expires > now + session.lease then
    session.expires = now + session.lease
    call('HSET', N .. 'session', all[i], lease_text(session))
    moved[#moved + 1] = { all[i], session.epoch, lease_text(session), call('SMEMBERS', N .. 'sq:' .. all[i]) }
  end
  if now >= session.expires then late[#late + 1] = { session.epoch, all[i] } end
end
if now ~= clock and #all > 0 then call('SET', N .. 'clock', now) end
if #all == 0 then call('DEL', N .. 'clock') end
table.sort(late, function(one, other) return one[1] < other[1] end)
local names = {}
for _, one in ipairs(late) do names[#names + 1] = one[2] end
local begun = call('HGETALL', N .. 'ending')
for i = 1, #begun, 2 do
  local epoch, name = string.match(begun[i], '^(%d+)\n(.*)$')
  ending[#ending + 1] = { name, epoch, begun[i + 1], call('SMEMBERS', N .. 'eq:' .. epoch) }
end
return { names, moved, ending }
