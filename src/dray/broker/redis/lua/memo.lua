-- memo: appends to the logs of durable jobs of one queue, in the name of the runs that a session holds.
-- uses: durable
--
-- ARGV[3] session  [4] most entries, [5] most bytes of a log
-- ARGV[6..] per write: id, run, position, JSON of {children, undo, consumed: name -> number}, number of entries, entries
-- returns {verdicts, aftermath} | {'large', id, entries, bytes}, and nothing was written
local session, verdicts, writes = ARGV[3], {}, {}

local function holds(job, run)
  for _, one in ipairs(job and job.runs or {}) do
    if one[1] == run and one[2] == session then return true end
  end
  return false
end

-- True if just these entries are there from the position on.
local function is_repeat(job, write)
  local there = call('LRANGE', Q .. 'log:' .. job.id, write.position, -1)
  if #there == 0 or #there ~= #write.entries then return false end
  for i, entry in ipairs(there) do
    if entry ~= write.entries[i] then return false end
  end
  return true
end

local function read_write(at_)
  local write = { job = load(ARGV[at_]), position = tonumber(ARGV[at_ + 2]), entries = {}, size = 0 }
  local count_ = tonumber(ARGV[at_ + 4])
  for i = at_ + 5, at_ + 4 + count_ do
    write.entries[#write.entries + 1], write.size = ARGV[i], write.size + #ARGV[i]
  end
  write.beside = cjson.decode(ARGV[at_ + 3])
  return write, at_ + 5 + count_
end

local function verdict_of(write, run)
  local job = write.job
  if not holds(job, run) then return 'refused' end
  if write.position == (job.memos or 0) then return 'accepted' end
  return is_repeat(job, write) and 'already' or 'refused'
end

local function drop_messages(job, name, number)
  local key = Q .. 'box:' .. job.id
  local n = call('HMGET', key, name .. '\n#', name .. '\n<')
  local first, last = tonumber(n[2] or 0) + 1, math.min(number, tonumber(n[1] or 0))
  local fields = {}
  for i = first, last do fields[#fields + 1] = name .. '\n' .. i end
  if #fields == 0 then return end
  many('HDEL', key, fields)
  call('HSET', key, name .. '\n<', last)
end

local function write_memo(write)
  local job, beside = write.job, write.beside
  if #write.entries > 0 then
    many('RPUSH', Q .. 'log:' .. job.id, write.entries)
    job.memos, job.size = (job.memos or 0) + #write.entries, (job.size or 0) + write.size
  end
  for _, child in ipairs(beside.children or {}) do
    call('ZADD', Q .. 'kids:' .. job.id, 'NX', call('HINCRBY', Q .. 'n', 'dep', 1), child)
    job.kids = 1
  end
  if beside.undo ~= nil then job.undoable = beside.undo and 1 or nil end
  for name, number in pairs(job.box and beside.consumed or {}) do drop_messages(job, name, number) end
  save(job)
end

local at_ = 6
while at_ <= #ARGV do
  local write, after = read_write(at_)
  local verdict = verdict_of(write, tonumber(ARGV[at_ + 1]))
  verdicts[#verdicts + 1] = verdict
  if verdict == 'accepted' then
    local entries, size = (write.job.memos or 0) + #write.entries, (write.job.size or 0) + write.size
    if entries > tonumber(ARGV[4]) or size > tonumber(ARGV[5]) then return { 'large', ARGV[at_], entries, size } end
    writes[#writes + 1] = write
  end
  at_ = after
end
for _, write in ipairs(writes) do write_memo(write) end
return { verdicts, aftermath() }
