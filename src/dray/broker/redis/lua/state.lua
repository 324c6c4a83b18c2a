-- state: what a script on a queue collects while it runs (see prelude and close).
-- uses: clock
--
-- KEYS[1]  the queue's prefix `dray:{namespace:queue}:`. Every key of a queue begins with it, so a queue is one slot
local Q = KEYS[1]
local events, joined, counted, slots = {}, 0, {}, {} -- `joined`: lines of events beyond one each
local woken = { ready = {}, due = nil, all = false }
local looked_at -- sleepers that were read to give one a job (see takers)
