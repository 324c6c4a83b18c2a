-- check_for_work_fast: the fast path of check_for_work, for a waiter that will sleep because no job is ready, due,
-- offered or asked to stop, and no run of the session became void. Takes and returns the same.
-- uses: prelude sleepers

-- The take that the waiter offers, as fields of a sleeper; nil if this queue has answered it.
local function offered_take()
  local request, session = ARGV[11], ARGV[5]
  if request == '' then return '' end
  local last = string.match(call('HGET', Q .. 't', session) or '0', '^%d+')
  if tonumber(last) >= tonumber(request) then return nil end
  return ' request=' .. request .. ' cluster=' .. ARGV[12] .. ' session=' .. session
end

local function check_fast()
  local waiter, session = ARGV[3], ARGV[5]
  if waiter == '' or ARGV[6] ~= '1' then return end
  if call('EXISTS', Q .. 'index', Q .. 'due', Q .. 'offer', Q .. 'asked', Q .. 'v:' .. session) > 0 then return end
  local take = offered_take()
  if not take then return end
  register_sleeper(waiter, now + ARGV[4], ARGV[10], ARGV[7], ARGV[8], ARGV[9], take)
  return { 0, 0, '' }
end

local quick = check_fast()
if quick then return quick end
