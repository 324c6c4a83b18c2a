-- settle_plain: the fast path of settle, for successes of first runs of simple jobs. Otherwise it changes nothing and
-- the full script goes on.
-- uses: plain
--
-- Takes and returns the same as settle. A watcher of a job that listens is sent what a read would show, unless that is
-- long: "id\nqueue now length-of-head length-of-body\n<head><body><result as given>".
local function plainly()
  local session = ARGV[3]
  local names, seen = {}, {}
  for i = 4, #ARGV, 4 do
    local id = ARGV[i]
    if ARGV[i + 3] ~= '' or seen[id] then return end
    seen[id], names[#names + 1] = true, id
  end
  if #names == 0 or #names > 1000 then return end
  local now, at = tonumber(ARGV[1]), ARGV[1]
  if not now then
    local time = call('TIME')
    at = time[1] .. string.sub('00000' .. time[2], -6, -4)
    now = tonumber(at)
  end
  local done_ttl, result_ttl = string.match(ARGV[2], '^(%d+),%-?%d+,(%d+)$')
  local forget = string.format('%.0f', now + done_ttl)

  local texts, ended, refs, results, large, tasks, slot = {}, {}, {}, {}, {}, {}, false
  for i, head in ipairs(call('HMGET', Q .. 'head', unpack(names))) do
    local run, result = ARGV[4 * i + 1], ARGV[4 * i + 2]
    local first, times, holder, a, stamp, task, more =
      string.match(head or '', '^h(%d+) (%d+ %d+) ([^\n]*)\n((%d+) %d+|([^|]*)|%d+)(.*)$')
    if first ~= run or holder ~= session then return end
    if more ~= '' then
      if not string.find(more, '^' .. MORE) then return end
      a, slot = a .. more, slot or string.find(more, '"m"', 1, true)
    end
    local id, n = names[i], 2 * i
    texts[n - 1], texts[n] = id, 'o' .. run .. ' ' .. times .. ' ' .. at .. '\n' .. a
    ended[n - 1], ended[n] = forget, string.sub(stamp, 1, 16) .. id
    refs[i] = run .. ' ' .. id
    tasks[task] = (tasks[task] or 0) + 1
    if #result > 257 then
      large[#large + 1] = i
    elseif result ~= '' then
      local size = #results
      results[size + 1], results[size + 2] = id, string.sub(result, 2)
    end
  end
  -- Mostly none of these exists, so one call replaces three.
  local watched = {}
  if call('EXISTS', Q .. 'set', Q .. 'prog', Q .. 'ends') > 0 then
    if call('EXISTS', Q .. 'prog') > 0 then return end
    slot = slot or call('HEXISTS', Q .. 'set', 'limits') == 1
    for task in pairs(tasks) do slot = slot or call('HEXISTS', Q .. 'set', 'limits:' .. task) == 1 end
    for i, waited_for in ipairs(call('SMISMEMBER', Q .. 'ends', unpack(names))) do
      if waited_for == 1 then
        if call('EXISTS', Q .. 'd:' .. names[i]) == 1 then return end
        watched[#watched + 1] = i
      end
    end
  end

  call('HSET', Q .. 'head', unpack(texts))
  call('ZADD', Q .. 'ended', unpack(ended))
  if #results > 0 then call('HSET', Q .. 'res', unpack(results)) end
  for _, i in ipairs(large) do
    if result_ttl ~= '0' then call('SET', Q .. 'res:' .. names[i], string.sub(ARGV[4 * i + 2], 2), 'PX', result_ttl) end
  end
  call('SREM', Q .. 'h:' .. session, unpack(refs))
  for task, ends in pairs(tasks) do
    if call('HINCRBY', Q .. 'running', 't:' .. task, -ends) == 0 then call('HDEL', Q .. 'running', 't:' .. task) end
  end
  if call('HINCRBY', Q .. 'running', 'q', -#names) == 0 then call('HDEL', Q .. 'running', 'q') end
  call('HINCRBY', Q .. 'counts', 'o', #names)
  if call('HINCRBY', Q .. 'counts', 'h', -#names) == 0 then call('HDEL', Q .. 'counts', 'h') end
  local number, total = call('HINCRBY', Q .. 'n', 'feed', 1), call('HINCRBY', Q .. 'n', 'events', #names)
  call('XADD', Q .. 'feed', 'MAXLEN', '~', math.max(100, math.min(10000, math.floor(200000 * number / total))),
    number .. '-0', 'a', at, 'e', 'S' .. table.concat(refs, '\nS'))

  for _, i in ipairs(watched) do
    local id, namespace, queue = names[i], string.match(Q, '{(.-):([^{}]*)}')
    local head, body, result = texts[2 * i], call('HGET', Q .. 'job', id), ARGV[4 * i + 2]
    local message = id .. '\n'
    if #body + #result <= 65536 then
      message = message .. table.concat({ queue, at, #head, #body }, ' ') .. '\n' .. head .. body .. result
    end
    for _, watcher in ipairs(call('SMEMBERS', Q .. 'w:' .. id)) do
      if call('PUBLISH', 'dray:' .. namespace .. ':w:' .. watcher, message) == 0 then
        call('ZADD', Q .. 'm:' .. watcher, at, id)
        call('PEXPIRE', Q .. 'm:' .. watcher, 172800000)
        call('SADD', Q .. 'mailed', watcher)
      end
    end
    call('DEL', Q .. 'w:' .. id)
    call('SREM', Q .. 'ends', id)
  end
  -- A free slot may let a job start that a limit held back.
  if slot then wake_before() end
  return { 1, { 0, {}, {} } }
end

local quick = plainly()
if quick then return quick end
