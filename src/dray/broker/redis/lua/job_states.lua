-- job_states: reads the states of jobs of this queue.
-- uses: base job
--
-- ARGV[3..] ids
-- returns per id: state ('' if unknown), newest run, 1 if it has watchers or dependants
local answers = {}
for i = 3, #ARGV do
  local head = call('HGET', Q .. 'head', ARGV[i])
  local job = head and read_head(head) or call('HEXISTS', Q .. 'job', ARGV[i]) == 1 and { s = 'r', r = 0 } or {}
  answers[#answers + 1], answers[#answers + 2] = job.s or '', job.r or 0
  answers[#answers + 1] = call('SISMEMBER', Q .. 'ends', ARGV[i])
end
return answers
