-- send: puts a message into the mailbox of a job (`box:ID`, see durable), and wakes the job if it waits for it.
-- uses: durable
--
-- ARGV[3] id  [4] name  [5] id of the message  [6] body  [7] most messages held  [8] ids remembered
-- returns {verdict, state ('' unknown), aftermath}
local id, name, message = ARGV[3], ARGV[4], ARGV[5]
local key, job = Q .. 'box:' .. id, load(id)

local function refusal()
  if not job then return 'not_found' end
  if job.box and call('HEXISTS', key, name .. '\n=' .. message) == 1 then return 'already' end
  if finished[job.state] then return 'finished' end
  local n = job.box and call('HMGET', key, name .. '\n#', name .. '\n<') or {}
  if tonumber(n[1] or 0) - tonumber(n[2] or 0) >= tonumber(ARGV[7]) then return 'full' end
end

-- Returns the number of the message.
local function keep()
  local number = call('HINCRBY', key, name .. '\n#', 1)
  call('HSET', key, name .. '\n' .. number, ARGV[6], name .. '\n@' .. number, message, name .. '\n=' .. message, number)
  local old = name .. '\n@' .. (number - tonumber(ARGV[8]))
  local forgotten_id = call('HGET', key, old)
  if forgotten_id then call('HDEL', key, old, name .. '\n=' .. forgotten_id) end
  if job.state == 'ready' and not job.box then lane_mark(job) end
  job.box = 1
  save(job)
  return number
end

local refused = refusal()
if refused then return { refused, job and job.state or '', { 0, {}, {} } } end
local number = keep()
local seen = job.suspended and (cjson.decode(job.suspended).events or {})[name]
if seen and number > seen then durable.wake(job) end
return { 'accepted', job.state, aftermath() }
