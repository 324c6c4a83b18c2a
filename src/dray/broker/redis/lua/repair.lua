-- repair: checks the next stretch of everything a queue keeps, and repairs damage that no script of dray can cause.
-- uses: repair_numbers
--
-- ARGV[3] number of entries of each kind to check
-- returns {kinds of repair and their numbers: kind, count, ..., ids that clients made up, edges: dependency, dependant,
--          ..., aftermath}
local edges = {}

-- Removes entries without a job, or of a job that stands elsewhere.
local function check_place(key, belongs, named)
  local first = look[key] or 0
  local entries = call('ZRANGE', Q .. key, first, first + most - 1)
  look[key] = #entries == most and first + most or nil
  local ids = {}
  for i, text in ipairs(entries) do ids[i] = named and text or id_of(text) end
  preload(ids)
  for i, text in ipairs(entries) do
    local job = load(ids[i])
    if not job or not belongs(job) or (not named and member(job) ~= text) then
      note_repair(key == 'offer' and 'offer' or 'place')
      call('ZREM', Q .. key, text)
    end
  end
end

local function check_places()
  check_place('waiting', function(job) return job.state == 'waiting' end, true)
  check_place('due', function(job) return place[job.state] == 'due' or job.wake ~= nil end)
  check_place('ended', function(job) return place[job.state] == 'ended' end)
  check_place('ttl', function(job) return job.expires ~= nil end)
  check_place('deadline', function(job) return job.deadline and not_started[job.state] end)
  check_place('offer', function(job) return job.state == 'running' and job.offered end, true)
end

local function check_keys()
  local keys = stretch('HSCAN', 'key', most)
  for i = 1, #keys, 2 do
    local id, ends = string.match(keys[i + 1], '^(.*)\n(%d*)$')
    local job = id and load(id)
    if not job or job.options.key ~= keys[i] or (finished[job.state] and ends == '') then
      note_repair('key')
      call('HDEL', Q .. 'key', keys[i])
      call('ZREM', Q .. 'keyttl', keys[i])
    end
  end
end

local function check_results()
  for _, key in ipairs({ 'res', 'err' }) do
    for _, id in ipairs(stretch('HSCAN', key, most / 4, true)) do
      if call('HEXISTS', Q .. 'job', id) == 0 then
        note_repair('record')
        call('HDEL', Q .. key, id)
      end
    end
  end
end

local function check_ends()
  for _, id in ipairs(stretch('SSCAN', 'ends', 20)) do
    local waiting = call('ZRANGEBYSCORE', Q .. 'd:' .. id, '(0', '+inf', 'LIMIT', 0, 20)
    for _, dependant in ipairs(waiting) do
      edges[#edges + 1], edges[#edges + 2] = id, dependant
    end
    if call('EXISTS', Q .. 'd:' .. id, Q .. 'w:' .. id) == 0 then
      note_repair('record')
      call('SREM', Q .. 'ends', id)
    end
  end
end

lane_check.check_blocked()
lane_check.check_stale()
job_check.check_jobs()
check_places()
lane_check.check_line()
check_keys()
job_check.check_heads()
check_results()
check_ends()
-- A repair changes the numbers when this script closes, so they are checked next time.
if not repaired then
  check_slots()
  check_counts()
end
return { end_look(), made_up, edges, aftermath() }
