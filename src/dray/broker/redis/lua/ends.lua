-- ends: runs and jobs come to an end; those that wait for it are notified.
-- uses: places watchers waits past_runs
--
-- `h:SESSION` SET "run id": runs that a session holds here; `v:SESSION` SET: runs that became void
-- `asked`    HASH "run id" -> session: runs that are asked to stop, with "\n!" behind it: at once; `prog` HASH "run id"
--            -> progress
-- `offer`    ZSET id -> order of the offers
-- `ends`     SET ids that have watchers or dependants: `w:ID` (see watchers), `d:ID` ZSET jobs that depend on it
--            (score below 0: it does not wait any more, but the job is a node and may be replayed)
-- `out`      ZSET the outbox: "number\nstate\ndependant\ndependency\nhint", messages to other queues;
--            the hint orders the messages that one call caused in several queues. State: how the dependency ended,
--            "parent <state>" to a job that it calls, "revived": it is unfinished again
-- `kids:ID`  ZSET jobs that a durable job calls, in order; `log:ID` LIST its log; `box:ID` HASH its mail, see send
local GROUP_MAX, posted, forgotten, gone, hint, newcomer, withdraw_offer, use_slots, add_past_run, end_run, post
local tell_dependants, tell_revived, tell_children, announce_end, stop_waiting, finish, bury, end_undo
local back_in_line

do
  GROUP_MAX = 1000 -- dray.job.GROUP_MAX
  local RUNS_KEPT = 20 -- as in dray.job
  posted, forgotten, gone, hint = 0, {}, {}, ''

  function withdraw_offer(job)
    if not job.offered then return end
    job.offered = nil
    call('ZREM', Q .. 'offer', job.id)
    save(job)
  end

  function use_slots(job, by)
    slot('q', by)
    slot('t:' .. job.task, by)
    if job.group ~= '' then slot('g:' .. job.group, by) end
    if job.running_key ~= '' then slot('k:' .. job.running_key, by) end
  end

  -- A free slot may let a job start that a limit held back.
  local function slot_freed(job)
    if job.group ~= '' then unblock_cause('g:' .. job.group) end
    if job.running_key ~= '' then unblock_cause('k:' .. job.running_key) end
    if job.options.max_running or job.running_key ~= '' or setting('limits') or setting('limits:' .. job.task) then
      woken.all = true
    end
  end

  function add_past_run(job, run, session, since, ended, how, problem)
    local past = job.past or {}
    past[#past + 1] = string.format('[%.0f,%s,%.0f,%.0f,"%s",%s]',
      run, cjson.encode(session), since or 0, ended or 0, how, cjson.encode(problem))
    if #past > RUNS_KEPT then table.remove(past, 1) end
    job.past = past
  end

  -- Ends a run and frees its slot. Returns the session that held it.
  function end_run(job, run, how, problem)
    local left, session = {}, nil
    for _, one in ipairs(job.runs or {}) do
      if one[1] ~= run then
        left[#left + 1] = one
      else
        session = one[2]
        if how ~= 'succeeded' or job.run > 1 then
          add_past_run(job, run, session, one[3], now, how, short_error(problem))
        end
      end
    end
    job.runs = #left > 0 and left or nil
    if job.runs then count('second', -1) end
    local ref = run .. ' ' .. job.id
    if job.undoable and job.cancel then job.forced = call('HGET', Q .. 'asked', ref) == session .. '\n!' end
    call('SREM', Q .. 'h:' .. session, ref)
    call('HDEL', Q .. 'asked', ref)
    call('HDEL', Q .. 'prog', ref)
    call('ZREM', Q .. 'handed', ref)
    use_slots(job, -1)
    slot_freed(job)
    if not job.runs then withdraw_offer(job) end
    save(job)
    return session
  end

  function post(dependant, dependency, ended)
    posted = 1
    local number = call('HINCRBY', Q .. 'n', 'out', 1)
    call('ZADD', Q .. 'out', number, table.concat({ number, ended, dependant, dependency, hint }, '\n'))
  end

  function tell_dependants(id, ended)
    for _, dependant in ipairs(call('ZRANGEBYSCORE', Q .. 'd:' .. id, '(0', '+inf')) do
      if dependant ~= newcomer then post(dependant, id, ended) end
    end
  end

  -- Tells all that ever depended on a node that it is unfinished again, in the order in which they were registered.
  function tell_revived(job)
    if not job.options.node then return end
    local found, order = call('ZRANGE', Q .. 'd:' .. job.id, 0, -1, 'WITHSCORES'), {}
    for i = 1, #found, 2 do order[#order + 1] = { math.abs(tonumber(found[i + 1])), found[i] } end
    table.sort(order, function(one, other) return one[1] < other[1] end)
    for _, one in ipairs(order) do post(one[2], job.id, 'revived') end
  end

  -- Tells the jobs that a durable job calls that it ended, so that they are cancelled.
  function tell_children(job, ended)
    if not job.kids then return end
    for _, child in ipairs(call('ZRANGE', Q .. 'kids:' .. job.id, 0, -1)) do post(child, job.id, 'parent ' .. ended) end
    call('DEL', Q .. 'kids:' .. job.id)
    job.kids = nil
  end

  -- Tells watchers and dependants that a job ended.
  function announce_end(id, ended)
    if call('SISMEMBER', Q .. 'ends', id) == 0 then return end
    tell_watchers(id, '')
    tell_dependants(id, ended)
    if call('EXISTS', Q .. 'd:' .. id) == 0 then call('SREM', Q .. 'ends', id) end
  end

  -- The caller removes it from its dependencies, which may be in other slots.
  function stop_waiting(job)
    for _, dependency in ipairs(waits.list(job)) do
      forgotten[#forgotten + 1], forgotten[#forgotten + 2] = dependency, job.id
    end
    waits.clear(job)
  end

  -- Makes a job ready once more, to be undone: without deadline, with crashes of its own.
  local function begin_undo(job, to, reason, run)
    if job.deadline then call('ZREM', Q .. 'deadline', member(job)) end
    job.undo, job.deadline, job.crashes = { to, reason or '' }, nil, nil
    enqueue(job, 'B', nil, run)
  end

  -- Finishes a job: other runs become void, the key is freed or kept for `once`, watchers and dependants are notified.
  -- One with something to undo is undone first.
  function finish(job, kind, to, reason, run)
    for _, other in ipairs(job.runs or {}) do
      local session = end_run(job, other[1], 'overtaken')
      call('SADD', Q .. 'v:' .. session, other[1] .. ' ' .. job.id)
      call('PUBLISH', channel('s', session), '1')
    end
    stop_waiting(job)
    set_expires(job, nil)
    tell_children(job, to)
    end_suspension(job)
    local undo = job.undoable and not job.undo and not job.forced and to ~= 'succeeded'
    job.cancel, job.forced, job.orphaned, job.depends = nil, nil, nil, nil
    if undo then return begin_undo(job, to, reason, run) end
    if job.undo then job.undo, job.undone, job.undoable = nil, 1, nil end
    job.finished, job.reason, job.due = now, reason, nil
    move(job, kind, to, run)
    free_key(job)
    announce_end(job.id, to)
  end

  function bury(job, reason, run)
    finish(job, 'D', 'dead', reason, run)
  end

  -- Ends a job that was undone; `why` its undo failed or was stopped.
  function end_undo(job, why, run)
    local state, reason = job.undo[1], job.undo[2] .. (why and '; undo: ' .. why or '')
    finish(job, state == 'dead' and 'D' or 'C', state, reason, run)
  end

  -- Back to its old number in line, unless its deadline has passed.
  function back_in_line(job, kind, run)
    if is_overdue(job) then bury(job, OVERDUE, run) else move(job, kind, 'ready', run) end
  end
end
