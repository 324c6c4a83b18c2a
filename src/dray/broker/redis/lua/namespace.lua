-- namespace: the beginning of every script that works on the namespace's own slot.
-- uses: clock
--
-- KEYS[1]  `dray:{namespace}:`
local N = KEYS[1]

-- A counter starts at the time in ms, so that no number is used twice after the server has lost its data.
local function start_at_now(counter)
  call('SET', N .. counter, string.format('%.0f', math.max(1, now)))
  return math.max(1, now)
end

-- The lease of a session: "epoch=<n> lease=<ms> expires=<ms>".
local function read_lease(stored)
  local epoch, lease, expires = string.match(stored, '^epoch=(%d+) lease=(%d+) expires=(%d+)$')
  return { epoch = tonumber(epoch), lease = tonumber(lease), expires = tonumber(expires) }
end

local function lease_text(session)
  return string.format('epoch=%.0f lease=%.0f expires=%.0f', session.epoch, session.lease, session.expires)
end
