-- job: loads, reads and saves jobs, as tables with the names of job_text.
-- uses: tally job_text
--
-- `ended`, `due`, `ttl`, `deadline` ZSET: members are the arrival stamp and the id, so that equal times go in the order
--        of arrival; in `due` also waiting jobs that a moment wakes. `waiting` ZSET by stamp. `res`, `err` HASH id -> result (small), error. `res:ID` a larger result,
--        with TTL.
local jobs, dirty, finished, not_started, fresh_job, known, load, state_of, save, save_all, is_overdue, member
local id_of, lane_of, public_id

do
  jobs, dirty = {}, {}
  finished = { succeeded = true, dead = true, cancelled = true }
  not_started = { waiting = true, scheduled = true, retrying = true, ready = true }
  local FIELDS = {
    'class', 'settled', 'crashes', 'suspect', 'expires', 'deadline', 'cancel', 'reason', 'runs', 'waits', 'offered',
    'memos', 'size', 'kids', 'box', 'undoable', 'undo', 'undone', 'replayed', 'orphaned', 'depends', 'suspended', 'wake',
    'revived',
  }

  -- Reads the header into named fields, once.
  local function read_header(job)
    local shape, stamp, created, class, options = string.match(job.header, HEADER)
    job.shape, job.stamp, job.class = shape, stamp, job.class or class
    job.put_class = class
    job.created = created ~= '' and tonumber(created) or math.floor(tonumber(stamp) / 1000)
    job.task = string.match(job.class, '^%d+|(.-)|')
    job.options = options == '' and {} or cjson.decode(options)
    job.group, job.rate_key, job.running_key =
      job.options.group or '', job.options.rate_key or '', job.options.running_key or ''
    return job
  end

  local function read_rest(job, rest)
    for name, value in string.gmatch(rest, '\n(%a+)=([^\n]*)') do
      if name == 'past' then
        job.past = job.past or {}
        job.past[#job.past + 1] = value
      else
        job[name] = cjson.decode(value)
      end
    end
  end

  local function read_head(head)
    local state, run, line, failures, started, last, value, header, rest = string.match(head, FACTS)
    local job = {
      state = state, run = tonumber(run), line = tonumber(line), failures = tonumber(failures), header = header,
      started = started ~= '0' and tonumber(started) or nil,
    }
    if last == 'due' or last == 'finished' then job[last] = tonumber(value) end
    job.settled = state == 'running' and job.run - 1 or job.run
    if state == 'running' and last == 'session' then job.runs = { { job.run, value, job.started } } end
    if rest ~= '' then read_rest(job, rest) end
    return job
  end

  function fresh_job(id, line, header)
    return read_header({
      id = id, state = 'ready', run = 0, line = tonumber(line), failures = 0, settled = 0, header = header,
    })
  end

  function known(id, head, body)
    local job
    if head then
      job = read_header(read_head(head))
      job.id = id
    else
      job = fresh_job(id, body_parts(body))
    end
    job.stands = job.state == 'ready' and job.line or nil -- the number under which its lane has it
    jobs[id] = job
    return job
  end

  function load(id)
    if jobs[id] ~= nil then return jobs[id] or nil end
    local head = call('HGET', Q .. 'head', id)
    local body = not head and call('HGET', Q .. 'job', id)
    if not head and not body then return nil end
    return known(id, head, body)
  end

  -- The state of a job ('' if it is unknown) and its newest run, without its body.
  function state_of(id)
    local head = call('HGET', Q .. 'head', id)
    if head then
      local state, run = string.match(head, FACTS)
      return state, tonumber(run)
    end
    return call('HEXISTS', Q .. 'job', id) == 1 and 'ready' or '', 0
  end

  function save(job)
    dirty[job.id] = job
  end

  -- The last fact of a head: the due time, the end, or the session of its newest run if there is no other.
  local function last_fact(job)
    if job.due then return ' due=' .. string.format('%.0f', job.due) end
    if job.finished then return ' finished=' .. string.format('%.0f', job.finished) end
    local run = job.runs and not job.runs[2] and job.runs[1]
    if run and run[1] == job.run and run[3] == job.started then return ' session=' .. run[2] end
    return ''
  end

  -- True if a field need not be written, because the facts say the same.
  local function is_implied(job, name, last)
    if name == 'settled' then return job.settled == (job.state == 'running' and job.run - 1 or job.run) end
    if name == 'runs' then return string.sub(last, 1, 9) == ' session=' end
    if name == 'class' then return job.class == job.put_class end
    return false
  end

  -- JSON of a field. cjson writes 14 digits of a number, which some times do not fit in.
  local function json_of(value)
    if type(value) == 'number' then return string.format('%.0f', value) end
    if type(value) ~= 'table' or type(value[1]) ~= 'table' then return cjson.encode(value) end
    local runs = {}
    for i, run in ipairs(value) do
      runs[i] = string.format('[%.0f,%s,%.0f]', run[1], cjson.encode(run[2]), run[3])
    end
    return '[' .. table.concat(runs, ',') .. ']'
  end

  local function head_text(job)
    local last = last_fact(job)
    local started = job.started and string.format('%.0f', job.started) or '0'
    local lines = {
      facts_of(job.state, job.run, job.line or 0, job.failures, started, last) .. job.header,
    }
    for _, name in ipairs(FIELDS) do
      if job[name] and not is_implied(job, name, last) then
        lines[#lines + 1] = name .. '=' .. json_of(job[name])
      end
    end
    for _, past in ipairs(job.past or {}) do lines[#lines + 1] = 'past=' .. past end
    return table.concat(lines, '\n')
  end

  function save_all()
    local heads = {}
    for id, job in pairs(dirty) do heads[#heads + 1], heads[#heads + 2] = id, head_text(job) end
    if #heads > 0 then many('HSET', Q .. 'head', heads) end
  end

  function is_overdue(job)
    return job.deadline and now >= job.deadline
  end

  function member(job)
    return job.stamp .. job.id
  end

  function id_of(text)
    return string.sub(text, 17)
  end

  function lane_of(job)
    return job.class .. '\n' .. job.group .. '\n' .. job.rate_key .. '\n' .. job.running_key
  end

  -- An id as clients know it.
  function public_id(id)
    if string.byte(id) ~= 58 then return id end
    if string.byte(id, 2) == 58 then return string.sub(id, 2) end
    local bits, digits = 0, {}
    local held = 0
    for i = 2, #id do
      local byte = string.byte(id, i)
      local six = byte == 43 and 62 or byte == 47 and 63 or byte < 58 and byte + 4 or byte < 91 and byte - 65 or byte - 71
      bits, held = bits * 64 + six, held + 6
      while held >= 4 and #digits < 32 do
        local unit = 2 ^ (held - 4)
        digits[#digits + 1] = string.format('%x', math.floor(bits / unit))
        bits, held = bits % unit, held - 4
      end
    end
    return string.match(Q, ':([^:{}]*)}') .. ':' .. table.concat(digits)
  end
end
