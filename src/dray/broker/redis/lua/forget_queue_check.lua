-- forget_queue_check: is_bare() is true if only the counters of a queue are left. Every other key of a queue exists
-- only together with one of the keys tested here.
-- uses: prelude
local function is_bare()
  return call('EXISTS', Q .. 'job', Q .. 'head', Q .. 'feed', Q .. 'set', Q .. 'res', Q .. 'err', Q .. 'counts',
    Q .. 'index', Q .. 'class', Q .. 'lane', Q .. 'stale', Q .. 'blocked', Q .. 'due', Q .. 'waiting', Q .. 'ended',
    Q .. 'ttl', Q .. 'deadline', Q .. 'key', Q .. 'keyttl', Q .. 'rate', Q .. 'running', Q .. 's', Q .. 't',
    Q .. 'asked', Q .. 'prog', Q .. 'offer', Q .. 'handed', Q .. 'ends', Q .. 'mailed', Q .. 'out', Q .. 'sleep') == 0
end
