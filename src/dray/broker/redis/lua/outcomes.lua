-- outcomes: the outcomes of a settle, and runs of simple jobs that come to an end.
-- uses: job_text close
--
-- `ids`, `heads`: of all outcomes; `settled`: how many have been settled, `seen` their ids; by place `watched` and
-- `special` (has dependants) are true, if any is; `freed`: groups and keys that have free slots.
local session, settled, ids, seen = ARGV[3], 0, {}, {}
local heads, watched, special, reports, limits_set, freed
local HELD = ' session=' .. session .. '\n'

-- Reads the heads of all jobs, and which of them are watched or have dependants. Mostly none of the keys exists that
-- are looked at, so one command replaces three.
local function read_heads()
  for i = 4, #ARGV, 4 do ids[#ids + 1] = ARGV[i] end
  if #ids == 0 then return end
  heads = fetch('HMGET', Q .. 'head', ids)
  if call('EXISTS', Q .. 'set', Q .. 'prog', Q .. 'ends') == 0 then return end
  limits_set, reports = call('EXISTS', Q .. 'set') == 1, call('EXISTS', Q .. 'prog') == 1
  watched, special = {}, {}
  for i, waited_for in ipairs(fetch('SMISMEMBER', Q .. 'ends', ids)) do
    watched[i] = waited_for == 1
    special[i] = waited_for == 1 and call('EXISTS', Q .. 'd:' .. ids[i]) == 1
  end
end

-- Frees the slots of the group and the key of a job. They may let jobs start that a limit held back.
local function free_slots(header)
  if string.find(header, '"max_running"', 1, true) then woken.all = true end
  if string.byte(header) ~= 107 then return end
  local options = cjson.decode(string.match(header, ' ({[^\n]*)'))
  freed = freed or {}
  if options.group then
    slot('g:' .. options.group, -1)
    freed['g:' .. options.group] = true
  end
  if options.running_key then
    slot('k:' .. options.running_key, -1)
    freed['k:' .. options.running_key], woken.all = true, true
  end
end

-- The facts of a run of a simple job, and what follows them in its head; nil if the job is full, or the run is not held
-- by the session.
local function held_run(i)
  local run, head = ARGV[4 * i + 1], heads[i] or ''
  if seen[ARGV[4 * i]] or (special and special[i]) then return nil end
  local begins = 'running run=' .. run .. ' '
  local from, upto = string.find(head, HELD, #begins, true)
  if not from or string.sub(head, 1, #begins) ~= begins or string.byte(head, upto + 1) == 102 then return nil end
  return string.sub(head, 8, from - 1), string.sub(head, upto + 1)
end

-- The header of a job with one more past run, as text. Nil if that needs the full script.
local function with_past(header, run, facts, how, problem)
  local first = string.find(header, '\n', 1, true)
  if first and not only_past(string.sub(header, first)) then return nil end
  if run == '1' and how == 'succeeded' then return header end
  if tonumber(run) > 20 or string.find(session, '["\\]') then return nil end
  local started = string.match(facts, 'started=(%d+)$')
  return header .. '\npast=[' .. run .. ',"' .. session .. '",' .. started .. ',' .. at .. ',"' .. how .. '",'
    .. problem .. ']'
end

-- Frees the runs of a batch: {refs, tasks: task -> number of runs}.
local function free_runs(batch)
  many('SREM', Q .. 'h:' .. session, batch.refs)
  many('ZREM', Q .. 'handed', batch.refs)
  if reports then many('HDEL', Q .. 'prog', batch.refs) end
  for task, runs in pairs(batch.tasks) do
    slot('t:' .. task, -runs)
    -- A free slot may let a job start that a limit held back.
    if limits_set and (call('HEXISTS', Q .. 'set', 'limits') == 1
      or call('HEXISTS', Q .. 'set', 'limits:' .. task) == 1) then
      woken.all = true
    end
  end
  slot('q', -#batch.refs)
end
