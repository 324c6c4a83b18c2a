-- watchers: tells the watchers of a job that it ended.
-- uses: tally
--
-- `w:ID` SET watchers of an unfinished job; `m:WATCHER` ZSET id -> when it ended (kept for a day); `mailed` SET
-- watchers with mail here

-- Sends a message, "queue\nid\n" and perhaps the whole job; a watcher that does not listen finds mail when it comes.
local function tell_watchers(id, whole)
  local message = string.match(Q, ':([^:{}]*)}') .. '\n' .. id .. '\n' .. whole
  for _, watcher in ipairs(call('SMEMBERS', Q .. 'w:' .. id)) do
    if call('PUBLISH', channel('w', watcher), message) == 0 then
      call('ZADD', Q .. 'm:' .. watcher, at, id)
      call('PEXPIRE', Q .. 'm:' .. watcher, 172800000)
      call('SADD', Q .. 'mailed', watcher)
    end
  end
  call('DEL', Q .. 'w:' .. id)
end
