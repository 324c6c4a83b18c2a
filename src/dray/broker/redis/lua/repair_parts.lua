-- repair_parts: checks and repairs what a durable job has beside its head.
-- uses: repair_lanes

-- Parts of a durable job that are gone.
local function repair_parts(job)
  local entries = job.memos and call('LLEN', Q .. 'log:' .. job.id)
  if entries and entries ~= job.memos then
    note_repair('record')
    job.memos = entries > 0 and entries or nil
    save(job)
  end
  for _, part in ipairs({ 'box', 'kids' }) do
    if job[part] and call('EXISTS', Q .. part .. ':' .. job.id) == 0 then
      note_repair('record')
      job[part] = nil
      save(job)
    end
  end
end
