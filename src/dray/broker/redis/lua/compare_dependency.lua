-- compare_dependency: reads one side of a dependency. repair.py compares both sides. Changes nothing.
-- uses: base job
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
    answers[#answers + 1] = job and job.s or ''
    answers[#answers + 1] = call('ZSCORE', Q .. 'd:' .. one, other) and 1 or 0
  else
    local waits = 0
    for _, dependency in ipairs(job and job.w or {}) do
      if dependency == other then waits = 1 end
    end
    answers[#answers + 1] = waits
  end
end
return answers
