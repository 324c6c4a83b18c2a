-- compare_dependency: reads one side of a dependency. repair.py compares both sides. Changes nothing.
-- uses: waits
--
-- ARGV[3]  registered | waits
-- ARGV[4..] registered: pairs dependency (of this queue), dependant. waits: pairs dependant (of this queue), dependency
-- returns  registered, per pair: state of the dependency ('' if unknown), 1 if the dependant is registered.
--          waits, per pair: 1 if the dependant waits for the dependency
local answers = {}
for i = 4, #ARGV, 2 do
  local one, other = ARGV[i], ARGV[i + 1]
  local job = load(one)
  if ARGV[3] == 'registered' then
    answers[#answers + 1] = job and job.state or ''
    answers[#answers + 1] = tonumber(call('ZSCORE', Q .. 'd:' .. one, other) or 0) > 0 and 1 or 0
  else
    answers[#answers + 1] = job and waits.has(job, other) and 1 or 0
  end
end
return answers
