-- repair_look: how far repair has come, what it repaired, and reading many jobs at once.
-- uses: crashes removal
--
-- `n` has a field `look` while rounds are under way: JSON, how far each has come.
local most, stored_look = tonumber(ARGV[3]), call('HGET', Q .. 'n', 'look')
local look, fixed, repaired = cjson.decode(stored_look or '{}'), {}, false
local LARGE, RECOUNT = 2000000, 5000

local function note_repair(kind)
  fixed[kind] = (fixed[kind] or 0) + 1
  repaired = true
end

-- The next stretch of a hash or set; only the names, if asked for and supported by the server.
local function stretch(command, key, size, names)
  local reply = names and redis.pcall(command, Q .. key, look[key] or '0', 'COUNT', size, 'NOVALUES')
  local bare = reply and not reply.err
  if not bare then reply = call(command, Q .. key, look[key] or '0', 'COUNT', size) end
  look[key] = reply[1] ~= '0' and reply[1] or nil
  if bare or not names then return reply[2] end
  local found = {}
  for i = 1, #reply[2], 2 do found[#found + 1] = reply[2][i] end
  return found
end

-- Loads jobs together. Returns the number of bytes read.
local function preload(ids)
  local unknown, bodiless, bytes = {}, {}, 0
  for _, id in ipairs(ids) do
    if jobs[id] == nil then unknown[#unknown + 1] = id end
  end
  if #unknown == 0 then return 0 end
  for i, head in ipairs(fetch('HMGET', Q .. 'head', unknown)) do
    if head then known(unknown[i], head) else bodiless[#bodiless + 1] = unknown[i] end
  end
  if #bodiless == 0 then return 0 end
  for i, body in ipairs(fetch('HMGET', Q .. 'job', bodiless)) do
    if body then known(bodiless[i], nil, body) else jobs[bodiless[i]] = false end
    bytes = bytes + (body and #body or 0)
  end
  return bytes
end

-- Keeps how far the rounds have come. Returns the kinds of repair and their numbers.
local function end_look()
  local kept = next(look) and cjson.encode(look) or nil
  if kept ~= (stored_look or nil) then
    if kept then call('HSET', Q .. 'n', 'look', kept) else call('HDEL', Q .. 'n', 'look') end
  end
  local repairs = {}
  for kind, number in pairs(fixed) do
    repairs[#repairs + 1], repairs[#repairs + 2] = kind, number
  end
  return repairs
end
