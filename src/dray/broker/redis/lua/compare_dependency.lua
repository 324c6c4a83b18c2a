-- edge: what both sides of a dependency say; nothing is changed.
-- uses: base job
--
-- ARGV[3] told: pairs dependency (of this queue), dependant; per pair: state of the dependency ('' unknown), 1 if it would
--         tell the dependant. waits: pairs dependant (of this queue), dependency; per pair: 1 if it waits for that
local answers = {}
for i = 4, #ARGV, 2 do
  local one, other = ARGV[i], ARGV[i + 1]
  local job = load(one)
  if ARGV[3] == 'told' then
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
