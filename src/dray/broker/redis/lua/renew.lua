-- renew: renews the lease of one session in one queue, stores progress, and returns the session's notifications.
-- uses: close
--
-- `heard:SESSION` SET "run id": notifications that the last renew returned; these do not wake the session again
--
-- ARGV[3] session  [4] epoch  [5] the lease, as in take   ARGV[6..] per report: id, run, progress
-- returns {enrolled, lost, cancelled, forced}: lists of "run id"; enrolled is 0 if this queue does not know this
--         opening of the session
local session = ARGV[3]
local stored = call('HGET', Q .. 's', session)
if not stored or string.match(stored, '^epoch=(%d+)') ~= ARGV[4] then return { 0, {}, {}, {} } end
call('HSET', Q .. 's', session, ARGV[5])
for i = 6, #ARGV, 3 do
  local ref = ARGV[i + 1] .. ' ' .. ARGV[i]
  if call('SISMEMBER', Q .. 'h:' .. session, ref) == 1 then
    call('HSET', Q .. 'prog', ref, ARGV[i + 2])
    note('g', ARGV[i], ARGV[i + 1])
  end
end
local lost, cancelled, forced = call('SMEMBERS', Q .. 'v:' .. session), {}, {}
local asked = call('HGETALL', Q .. 'asked')
for i = 1, #asked, 2 do
  local holder, mark = string.match(asked[i + 1], '^([^\n]*)(.*)$')
  if holder == session then
    cancelled[#cancelled + 1] = asked[i]
    if mark ~= '' then forced[#forced + 1] = asked[i] end
  end
end
call('DEL', Q .. 'heard:' .. session)
if #lost > 0 then many('SADD', Q .. 'heard:' .. session, lost) end
if #cancelled > 0 then many('SADD', Q .. 'heard:' .. session, cancelled) end
close()
return { 1, lost, cancelled, forced }
