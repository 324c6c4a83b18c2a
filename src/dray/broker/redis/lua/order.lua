-- order: the order of ready jobs (docs/design.md, section 3), as far as the fast paths need it.
-- uses: prelude
--
-- `index`    ZSET class -> priority, number of its next job (see `rank`)     class is "priority|task|version"
-- `r:CLASS`  ZSET group -> turn                       the ring: the group whose turn it is comes first
-- `g:CLASS\nGROUP` ZSET lane -> number of its head    lane is "class\ngroup\nrate key\nrunning key"
-- `l:LANE`   LIST "number id": jobs in the order of their numbers in line. A job that gets a new number joins here
-- `z:LANE`   ZSET id -> number in line: jobs that came back to an old place (handed back, other priority)
-- `stale`    HASH lane -> number of entries of `l:LANE` whose job stands elsewhere by now. The first entry of a list is
--            never one of them
-- `class`, `lane` HASH class or lane -> limits that the last job to join declared, JSON: rate, max_running
local PRIORITY = 2 ^ 49
local PLAIN_LANE = '\n\n\n'

local function rank(class, head)
  return string.match(class, '^%d+') * PRIORITY + head
end

-- Puts a class at its place in `index`: its next job is the oldest of the group whose turn it is.
local function index_class(class)
  local group = call('ZRANGE', Q .. 'r:' .. class, 0, 0)[1]
  local head = group and call('ZRANGE', Q .. 'g:' .. class .. '\n' .. group, 0, 0, 'WITHSCORES')[2]
  if head then call('ZADD', Q .. 'index', rank(class, head), class) end
end

local function entry_parts(entry)
  local space = string.find(entry, ' ', 1, true) or #entry
  return string.sub(entry, 1, space - 1), string.sub(entry, space + 1)
end
