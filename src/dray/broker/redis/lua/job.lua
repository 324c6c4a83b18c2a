-- job: loads, reads and saves jobs.
-- uses: plain
--
-- `job`  HASH id -> body: the envelope as put (less id, task and queue), attributes, length of these (2 bytes). Never
--        rewritten.
-- `head` HASH id -> msgpack map of what changes. A simple ready job (see `is_simple`) has none: its body says all, so
--        that a ready job costs one entry here and one in its lane. A job in its first run, or that succeeded in it, is
--        a text: "h<run> <number in line> <started> <session>\n<attributes>", "o<run> <number> <started>
--        <finished>\n<...>"; so is a simple job that was never started and is scheduled: "s<due>\n<attributes>".
-- `ended`, `due`, `ttl`, `deadline` ZSET: members are the arrival stamp and the id, so that equal times go in the order
--        of arrival. `waiting` ZSET by stamp. `res`, `err` HASH id -> result (small), error. `res:ID` a larger result,
--          with TTL.
--
-- Attributes: "<stamp, 16 digits><created if it differs> <class>", and unless the job is plain
-- "\n<group>\n<rate key>\n<running key>\n<options>", options a JSON object or nothing.
-- Letters of states: w waiting, s scheduled, r ready, h running, t retrying, o succeeded, d dead, c cancelled.
--
-- Head: s state, a attributes, p class if the priority was edited, n number in line, r run, t newest settled run,
-- f failures, x crashes, u suspect (the size of its group), b started, d due, e expires, dl deadline (a moment), z
-- finished, c asked to stop (why), y reason, R valid runs {number, session, since}, w dependencies not done yet, of
-- offered, P past runs {number, session, since, ended, how, error}, the newest, unless its only run succeeded.
local jobs, dirty = {}, {}
local finished = { o = true, d = true, c = true }
local not_started = { w = true, s = true, t = true, r = true }
local words = {
  w = 'waiting', s = 'scheduled', r = 'ready', h = 'running', t = 'retrying',
  o = 'succeeded', d = 'dead', c = 'cancelled',
}

-- True if the attributes hold nothing but limits of the task as a whole and a due time (see plain).
local function is_simple(a)
  return not string.find(a, '\n', 17, true) or string.find(a, MORE, 17) ~= nil
end

local function tail(body)
  local length = string.byte(body, -2) * 256 + string.byte(body, -1)
  return string.sub(body, -length - 2, -3)
end

local function envelope(body)
  local length = string.byte(body, -2) * 256 + string.byte(body, -1)
  return string.sub(body, 1, -length - 3)
end

-- Reads the attributes into named fields, once.
local function attributes(job)
  if job.stamp then return job end
  local created, class, rest = string.match(job.a, '^(%d*) ([^\n]*)(.*)$', 17)
  job.stamp, job.class, job.group, job.rate_key, job.running_key = string.sub(job.a, 1, 16), job.p or class, '', '', ''
  job.created = created == '' and math.floor(tonumber(job.stamp) / 1000) or tonumber(created)
  job.task = string.match(job.class, '^%d+|(.-)|')
  local options = ''
  if rest ~= '' then
    job.group, job.rate_key, job.running_key, options =
      string.match(rest, '^\n([^\n]*)\n([^\n]*)\n([^\n]*)\n(.*)$')
  end
  job.o = options == '' and {} or cjson.decode(options)
  return job
end

-- The text form of a head: state, run, number in line, started, session or when it finished, attributes.
local function text_parts(head)
  return string.match(head, '^(.)(%d+) (%d+) (%d+) ([^\n]*)\n(.*)$')
end

local function read_head(head)
  local kind = string.byte(head)
  if kind == 115 then
    local due, a = string.match(head, '^s(%d+)\n(.*)$')
    return { s = 's', r = 0, d = tonumber(due), a = a }
  end
  if kind ~= 104 and kind ~= 111 then return cmsgpack.unpack(head) end
  local state, run, line, started, last, a = text_parts(head)
  local job = { s = state, r = tonumber(run), n = tonumber(line), b = tonumber(started), a = a }
  if state == 'h' then
    job.R = { { job.r, last, job.b } }
  else
    job.t, job.z = job.r, tonumber(last)
  end
  return job
end

local function known(id, head, body)
  local job = head and read_head(head) or { s = 'r', r = 0, a = tail(body) }
  job.id = id
  jobs[id] = job
  return attributes(job)
end

local function load(id)
  if jobs[id] ~= nil then return jobs[id] or nil end
  local head = call('HGET', Q .. 'head', id)
  local body = not head and call('HGET', Q .. 'job', id)
  if not head and not body then return nil end
  return known(id, head, body)
end

local function save(job)
  dirty[job.id] = job
end

local function packed(job)
  return cmsgpack.pack({
    s = job.s, a = job.a, p = job.p, n = job.n, r = job.r, t = job.t, f = job.f, x = job.x, u = job.u, b = job.b,
    d = job.d, e = job.e, dl = job.dl, z = job.z, c = job.c, y = job.y, R = job.R, w = job.w, of = job.of, P = job.P,
  })
end

-- The head of a simple job that was never started is empty when it is ready, a text while it is scheduled.
local function short_head(job)
  local past = (job.r or 0) + (job.t or 0) + (job.f or 0) + (job.x or 0) + (job.u or 0)
  if past > 0 or job.p or job.b or job.e or job.z or job.c or job.y or job.w or job.of or not is_simple(job.a) then
    return nil
  end
  if job.s == 'r' then return '' end
  if job.s == 's' and job.d then return 's' .. string.format('%.0f', job.d) .. '\n' .. job.a end
end

local function save_all()
  local heads, none = {}, {}
  for id, job in pairs(dirty) do
    local head = short_head(job) or packed(job)
    if head == '' then
      none[#none + 1] = id
    else
      heads[#heads + 1], heads[#heads + 2] = id, head
    end
  end
  if #none > 0 then many('HDEL', Q .. 'head', none) end
  if #heads > 0 then many('HSET', Q .. 'head', heads) end
end

local function is_overdue(job)
  return job.dl and now >= job.dl
end

local function member(job)
  return job.stamp .. job.id
end

local function id_of(text)
  return string.sub(text, 17)
end

local function lane_of(job)
  return job.class .. '\n' .. job.group .. '\n' .. job.rate_key .. '\n' .. job.running_key
end
