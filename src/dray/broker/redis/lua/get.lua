-- get: reads jobs of one queue, and registers a watcher for the unfinished ones in the same step.
--
-- KEYS[1] the queue's prefix  ARGV[1] now in ms, '' means the server's clock  [2] is not used here
-- ARGV[3] watcher or ''   ARGV[4..] ids
-- returns {now, per id: false if unknown, else {head or '', body, result or false, error or false,
--         progress of its runs: run, bytes, ...}}
--
-- It uses no shared parts, because every wait for a result passes here.
local Q, call, watcher = KEYS[1], redis.call, ARGV[3]
local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = tonumber(time[1] .. string.sub('00000' .. time[2], -6, -4))
end
local found = { now }
for i = 4, #ARGV do
  local id = ARGV[i]
  local body, head = call('HGET', Q .. 'job', id), call('HGET', Q .. 'head', id)
  if body then
    -- The state of the job, and the numbers of its runs (see job.lua).
    local state, runs = 'r', {}
    if head then
      state = string.sub(head, 1, 1)
      if state == 'h' then
        runs[1] = string.match(head, '^h(%d+)')
      elseif state ~= 'o' and state ~= 's' then
        -- A damaged head is shown as unreadable: it must not keep other jobs from being read.
        local readable, job = pcall(cmsgpack.unpack, head)
        if readable and type(job) == 'table' then
          state = job.s
          for n, run in ipairs(type(job.R) == 'table' and job.R or {}) do
            runs[n] = type(run) == 'table' and tonumber(run[1]) or 0
          end
        end
      end
    end
    if watcher ~= '' and state ~= 'o' and state ~= 'd' and state ~= 'c' then
      call('SADD', Q .. 'w:' .. id, watcher)
      call('SADD', Q .. 'ends', id)
    end
    local progress = {}
    for _, run in ipairs(runs) do
      local report = call('HGET', Q .. 'prog', run .. ' ' .. id)
      if report then progress[#progress + 1], progress[#progress + 2] = tonumber(run), report end
    end
    local result = state == 'o' and (call('HGET', Q .. 'res', id) or call('GET', Q .. 'res:' .. id))
    found[#found + 1] = { head or '', body, result or false, head and call('HGET', Q .. 'err', id), progress }
  else
    found[#found + 1] = false
  end
end
return found
