-- put_fast: the fast path of put: plain, simple and keyed jobs that are new, in a queue without bounds. Otherwise it
-- changes nothing but skips numbers in line, and the full script goes on, which uses these functions for such jobs
-- among others.
-- uses: prelude job_text joining wakes put_over
--
-- Takes and returns the same as put.

-- Adds a job to those that wait for their time.
local function sort_later(sorted, id, body, due)
  local text = string.format('%.0f', due)
  if not sorted.heads then sorted.heads, sorted.dues, sorted.later = {}, {}, {} end
  local size = #sorted.heads
  sorted.heads[size + 1] = id
  sorted.heads[size + 2] = facts_of('scheduled', 0, 0, 0, 0, ' due=' .. text) .. string.match(body, '^[^\n]*')
  sorted.dues[size + 1], sorted.dues[size + 2] = text, string.sub(body, 2, 17) .. id
  sorted.later[id], sorted.soonest = true, math.min(sorted.soonest or due, due)
end

-- Sorts jobs by lane and due time. Returns {lanes, bodies; if there are scheduled jobs: their heads, due times, ids and
-- the first due time}.
local function sort_simple(first, last, line)
  local said, bodies, size = {}, {}, 0
  local lanes = { said = said }
  local sorted = { lanes = lanes, bodies = bodies }
  for i = first, last, 2 do
    local id, body = ARGV[i], ARGV[i + 1]
    local class, options = string.match(body, '^.[%d+]+ ([^ \n]+) ?([^\n]*)')
    local due = options ~= '' and tonumber(string.match(options, '"due":(%d+)'))
    if due and due > now then
      bodies[size + 1], bodies[size + 2] = id, '0 ' .. body
      sort_later(sorted, id, body, due)
    else
      line = line + 1
      local number = line .. ' '
      local part = lanes[class]
      if part and options == '' then
        part.entries[#part.entries + 1], said[class] = number .. id, ''
      else
        sort_job(lanes, class, string.byte(body), options, number .. id)
      end
      bodies[size + 1], bodies[size + 2] = id, number .. body
    end
    size = size + 2
  end
  return sorted
end

-- Heads come before bodies, because a body without a head is a ready job. `limited`: see write_lanes.
local function write_simple(sorted, limited)
  if sorted.heads then
    many('HSET', Q .. 'head', sorted.heads)
    many('ZADD', Q .. 'due', sorted.dues)
    woken.due = math.min(woken.due or sorted.soonest, sorted.soonest)
  end
  many('HSET', Q .. 'job', sorted.bodies)
  write_lanes(sorted.lanes, limited)
end

-- The ids of all jobs of the call; nil if one is there already, or comes twice.
local function simple_ids()
  local ids, seen = {}, {}
  for i = 5, #ARGV, 2 do
    local id = ARGV[i]
    if seen[id] then return nil end
    seen[id], ids[#ids + 1] = true, id
  end
  for _, there in ipairs(fetch('HMGET', Q .. 'job', ids)) do
    if there then return nil end
  end
  return ids
end

local function states_of(sorted, ids)
  local states = {}
  for i, id in ipairs(ids) do states[i] = sorted.later and sorted.later[id] and 'scheduled' or 'ready' end
  return states
end

-- Mostly there is nothing special, so one command replaces four.
local function put_fast()
  if ARGV[3] ~= '' or ARGV[4] ~= '' or not ARGV[5] then return end
  local special = call('EXISTS', Q .. 'set', Q .. 'class', Q .. 'sleep', Q .. 'blocked') > 0
  local set = special and call('HGET', Q .. 'set', 'limits')
  if set then
    set = cjson.decode(set)
    if set.max_ready or set.enqueue_rate then return end
  end
  local ids = simple_ids()
  if not ids then return end
  local enlisted = call('HGET', Q .. 'n', 'known') or 0
  local handed = special and #ids == 1 and call('EXISTS', Q .. 'sleep') == 1 and put_over(enlisted)
  if handed then return handed end
  -- Scheduled jobs leave a gap between the numbers in line.
  local sorted = sort_simple(5, #ARGV, call('HINCRBY', Q .. 'n', 'line', #ids) - #ids)
  if special and any_blocked(sorted.lanes) then return end
  write_simple(sorted, special)
  add_to_feed('p0 ' .. table.concat(ids, '\np0 '), #ids)
  if special and call('EXISTS', Q .. 'sleep') == 1 then wakes() end
  return { enlisted, sorted.heads and states_of(sorted, ids) or 1, { 0, {}, {} } }
end

local quick = put_fast()
if quick then return quick end
