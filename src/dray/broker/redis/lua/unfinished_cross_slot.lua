-- unfinished_cross_slot: lists sessions and waiting jobs of this queue that a client which died between two slots may
-- have left half done. sweep looks at them.
-- uses: waits
--
-- ARGV[3] number of waiting jobs to skip  [4] number to look at
-- returns {sessions past their lease as this queue knows it: name, epoch, ..., waiting jobs: {id, orphan, dependency,
--          ...}}
local late, waiting = {}, {}
local sessions = call('HGETALL', Q .. 's')
for i = 1, #sessions, 2 do
  local epoch, expires = string.match(sessions[i + 1], '^epoch=(%d+) lease=%d+ expires=(%d+)')
  if now >= tonumber(expires) then late[#late + 1], late[#late + 2] = sessions[i], epoch end
end
local from = tonumber(ARGV[3])
for _, id in ipairs(call('ZRANGE', Q .. 'waiting', from, from + tonumber(ARGV[4]) - 1)) do
  local job = load(id)
  if job and job.waits then
    local orphan, ids = job.suspended and '' or job.options.orphan or '', waits.list(job)
    waiting[#waiting + 1] = { id, orphan, unpack(ids, 1, math.min(#ids, 5000)) }
  end
end
return { late, waiting }
