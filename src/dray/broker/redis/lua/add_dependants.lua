-- add_dependants: registers jobs of any queue as dependants of jobs of this queue. Called before the dependants are
-- put, so that no end is missed.
-- uses: base job
--
-- ARGV[3..] pairs: dependency (of this queue, perhaps not put yet), dependant
-- returns per pair: state of the dependency ('' if unknown), 1 if the pair is new
local answers = {}
for i = 3, #ARGV, 2 do
  local dependency, dependant = ARGV[i], ARGV[i + 1]
  local head, state, added = call('HGET', Q .. 'head', dependency), '', 0
  if head then state = read_head(head).s
  elseif call('HEXISTS', Q .. 'job', dependency) == 1 then state = 'r'
  end
  if state ~= 'o' then
    if not call('ZSCORE', Q .. 'd:' .. dependency, dependant) then
      added = 1
      call('ZADD', Q .. 'd:' .. dependency, call('HINCRBY', Q .. 'n', 'dep', 1), dependant)
    end
    call('SADD', Q .. 'ends', dependency)
  end
  answers[#answers + 1], answers[#answers + 2] = state, added
end
return answers
