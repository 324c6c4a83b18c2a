-- deliver: delivers outbox messages (a job ended) to the jobs of this queue that wait for it. Repeating it has no
-- effect.
-- uses: base job lanes transitions
--
-- ARGV[3..] per message: dependant, dependency, final state of the dependency (a word)
-- returns {number of messages that had an effect, aftermath}
local effects = 0
local function delivered(job, dependency, ended)
  local left, waits = {}, false
  for _, other in ipairs(job.w or {}) do
    if other == dependency then waits = true else left[#left + 1] = other end
  end
  if not waits or (job.o.or_ == 'wait' and ended ~= 'succeeded') then return end
  effects = effects + 1
  if ended == 'succeeded' or job.o.or_ == 'run' then
    forgotten[#forgotten + 1], forgotten[#forgotten + 2] = dependency, job.id
    job.w = #left > 0 and left or nil
    save(job)
    if not job.w then enqueue(job, 'R', job.o.d) end
  else
    finish(job, 'C', 'c', dependency .. ', which it waits for, is ' .. ended)
  end
end
for i = 3, #ARGV, 3 do
  local job = load(ARGV[i])
  if job then delivered(job, ARGV[i + 1], ARGV[i + 2]) end
end
return { effects, aftermath() }
