-- crashes: runs whose process died.
-- uses: ends

-- The size of the group in which a suspect runs next, after a process died that ran `together` jobs (0: a worker).
local function group_after(before, together)
  local half = together > 0 and math.ceil(together / 2) or GROUP_MAX
  return math.min((before or 0) > 0 and before or GROUP_MAX, half)
end

-- A run ended because its worker (`together` 0) or a child with so many jobs died. Alone, that counts as a crash.
local function crash(job, run, suspect, together, problem)
  end_run(job, run, together == 1 and 'crashed' or suspect and 'lost' or 'given_back', problem)
  if suspect then job.suspect = group_after(job.suspect, together) end
  if together == 1 then job.crashes = (job.crashes or 0) + 1 end
  if job.cancel and job.undo then end_undo(job, job.cancel, run)
  elseif job.cancel then finish(job, 'C', 'cancelled', job.cancel, run)
  elseif (job.crashes or 0) >= (job.options.max_crashes or 3) then
    local poison = 'poison: it crashed ' .. job.crashes .. ' times while running alone'
    bury(job, job.undo and job.undo[2] .. '; undo: ' .. poison or poison, run)
  elseif job.runs then note('E', job.id, run)
  else back_in_line(job, suspect and 'X' or 'G', run)
  end
end
