-- add_dependants: registers jobs of any queue as dependants of jobs of this queue. Called before the dependants are
-- put or suspended, so that no end is missed.
-- uses: job
--
-- ARGV[3] 1: jobs that are to be suspended, for which every end counts
-- ARGV[4..] pairs: dependency (of this queue, perhaps not put yet), dependant
-- returns per pair: state of the dependency ('' if unknown), 1 if the pair is new, 2 if it was only remembered
local any_end, answers = ARGV[3] == '1', {}

local function is_node(id)
  local job = load(id)
  return job and job.options.node
end

-- A dependant that need not wait is remembered by a node, with a score below 0.
local function register(dependency, dependant, waits)
  local key = Q .. 'd:' .. dependency
  local score = tonumber(call('ZSCORE', key, dependant) or 0)
  if not waits and (score ~= 0 or not is_node(dependency)) then return 0 end
  local number = score ~= 0 and math.abs(score) or call('HINCRBY', Q .. 'n', 'dep', 1)
  call('ZADD', key, waits and number or -number, dependant)
  call('SADD', Q .. 'ends', dependency)
  return score == 0 and 1 or score < 0 and 2 or 0
end

for i = 4, #ARGV, 2 do
  local state = state_of(ARGV[i])
  local waits = state ~= 'succeeded' and not (any_end and (state == '' or finished[state]))
  answers[#answers + 1], answers[#answers + 2] = state, register(ARGV[i], ARGV[i + 1], waits)
end
return answers
