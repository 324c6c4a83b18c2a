-- close: the end of a script: writes what was collected, wakes sleepers.
-- uses: wakes tally
local function wake_sleepers()
  if not (woken.all or woken.due or next(woken.ready)) or call('EXISTS', Q .. 'sleep') == 0 then return end
  wakes()
end

local function close()
  write_numbers()
  wake_sleepers()
end
