-- retention: how long finished jobs and results are kept, in ms (ARGV[2], see prelude).
local done_ttl, dead_ttl, result_ttl = string.match(ARGV[2], '^(%d+),(-?%d+),(%d+)$')
