-- id_directory: reads and changes the directory of ids that clients made up. It maps an id to the queue that has the
-- job, or has jobs waiting for it. A generated id names its queue and is not in the directory.
--
-- KEYS[1]  `dray:{namespace:/bucket}:id` HASH id -> queue
-- ARGV[1]  claim | move | free
-- ARGV[2..] claim: pairs id, queue. move: id, from, to; only if the id is still in `from`. free: pairs id, queue; only
--          if the id is still in that queue
-- returns  claim, move: the queue of each id now. free: nothing
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
