-- past_runs: the error that a past run keeps.
local RUN_ERROR_MAX = 200 -- as in dray.job

-- "Type: message" of a packed error, cut to RUN_ERROR_MAX bytes at a character boundary.
local function short_error(problem)
  if not problem or problem == '' then return '' end
  local error = cmsgpack.unpack(problem)
  local text = error[1] .. ': ' .. error[2]
  if #text <= RUN_ERROR_MAX then return text end
  local cut = string.sub(text, 1, RUN_ERROR_MAX)
  local after = string.byte(text, RUN_ERROR_MAX + 1)
  if after >= 128 and after < 192 then cut = string.gsub(cut, '[\192-\255][\128-\191]*$', '') end
  return cut
end
