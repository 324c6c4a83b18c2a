-- claim: the directory of ids that clients made up. It says in which queue an id is (or is waited for); an id that dray
-- generated names its queue itself and is not here.
--
-- KEYS[1]  `dray:{namespace:/bucket}:id` HASH id -> queue
-- ARGV[1]  claim | move | free
-- ARGV[2..] claim: pairs id, queue; returns who has each now. move: id, from, to: passes it on if it is still there.
--          free: pairs id, queue: gives it up if it is still there
local call, answers = redis.call, {}
if ARGV[1] == 'claim' then
  for i = 2, #ARGV, 2 do
    call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1])
    answers[#answers + 1] = call('HGET', KEYS[1], ARGV[i])
  end
elseif ARGV[1] == 'move' then
  if call('HGET', KEYS[1], ARGV[2]) == ARGV[3] then call('HSET', KEYS[1], ARGV[2], ARGV[4]) end
  answers[1] = call('HGET', KEYS[1], ARGV[2])
else
  for i = 2, #ARGV, 2 do
    if call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then call('HDEL', KEYS[1], ARGV[i]) end
  end
end
return answers
