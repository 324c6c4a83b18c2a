-- info: how a queue stands.
-- uses: base job line
--
-- returns {counts, settings, next due time or false, when the ready job that was created first was created or false}
--
-- Among more than SMALL ready jobs the oldest is looked for at the heads of lanes only: work here is bounded.
local SMALL = 2000
local oldest

local function look(lane, upto)
  local ids = call('ZRANGE', Q .. 'l:' .. lane, 0, upto)
  for _, id in ipairs(ids) do
    local created = load(id).created
    oldest = math.min(oldest or created, created)
  end
end

local upto = tonumber(call('HGET', Q .. 'counts', 'r') or 0) <= SMALL and -1 or 0
for _, class in ipairs(call('ZRANGE', Q .. 'index', 0, SMALL)) do
  for _, lane in ipairs(all_lanes(class)) do look(lane, upto) end
end
local due = call('ZRANGE', Q .. 'due', 0, 0, 'WITHSCORES')[2]
return { call('HGETALL', Q .. 'counts'), call('HGETALL', Q .. 'set'), due or false, oldest or false }
