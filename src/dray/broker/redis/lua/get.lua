-- get: read jobs of one queue, and watch those that are unfinished from the same step on.
-- uses: base job
--
-- ARGV[3] watcher or ''   ARGV[4..] ids
-- returns {now, per id: false if unknown, else {head or '', body, number in line or '', result or false, error or false,
--         progress of its runs: run, bytes, ...}}
local watcher, found = ARGV[3], { now }
for i = 4, #ARGV do
  local id = ARGV[i]
  local body, head = call('HGET', Q .. 'job', id), call('HGET', Q .. 'head', id)
  if body then
    local job = head and read_head(head) or { s = 'r' }
    local done = job.s == 'o' or job.s == 'd' or job.s == 'c'
    if watcher ~= '' and not done then
      call('SADD', Q .. 'w:' .. id, watcher)
      call('SADD', Q .. 'ends', id)
    end
    local progress = {}
    for _, run in ipairs(job.R or {}) do
      local told = call('HGET', Q .. 'prog', run[1] .. ' ' .. id)
      if told then progress[#progress + 1], progress[#progress + 2] = run[1], told end
    end
    local result = job.s == 'o' and (call('HGET', Q .. 'res', id) or call('GET', Q .. 'res:' .. id))
    found[#found + 1] = { head or '', body, result or false, call('HGET', Q .. 'err', id), progress }
  else
    found[#found + 1] = false
  end
end
return found
