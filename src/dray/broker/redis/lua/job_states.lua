-- job_states: reads the states of jobs of this queue.
-- uses: job
--
-- ARGV[3..] ids
-- returns per id: state ('' if unknown), newest run (-1: none, but a node, which is not replaced), 1 if it has watchers or
--         dependants
local answers = {}
for i = 3, #ARGV do
  local state, run = state_of(ARGV[i])
  if state ~= '' and run == 0 and load(ARGV[i]).options.node then run = -1 end
  answers[#answers + 1], answers[#answers + 2] = state, run
  answers[#answers + 1] = call('SISMEMBER', Q .. 'ends', ARGV[i])
end
return answers
