-- name: find_lane
-- The lane a job belongs to, with its group and class, as far as they exist.
SELECT c.id, c.rate, c.max_running, g.id, l.id, l.rate, l.max_running, l.head FROM classes c
LEFT JOIN groups g ON g.class = c.id AND g.name = ?
LEFT JOIN lanes l ON l.grp = g.id AND l.rate_key = ? AND l.running_key = ?
WHERE c.queue = ? AND c.priority = ? AND c.task = ? AND c.version = ?

-- name: insert_class
INSERT INTO classes (queue, priority, task, version, rate, max_running) VALUES (?, ?, ?, ?, ?, ?) RETURNING id

-- name: declare_class
UPDATE classes SET rate = ?, max_running = ? WHERE id = ?

-- name: insert_group
INSERT INTO groups (class, name, turn) VALUES (?, ?, ?) RETURNING id

-- name: insert_lane
INSERT INTO lanes (grp, queue, group_name, rate_key, running_key, rate, max_running, head)
VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING id

-- name: lane_freed
UPDATE groups SET free = free + 1 WHERE id = ?

-- name: lane_unfreed
UPDATE groups SET free = free - 1 WHERE id = ?

-- name: declare_lane
UPDATE lanes SET rate = ?, max_running = ? WHERE id = ?

-- name: set_head
UPDATE lanes SET head = ? WHERE id = ?

-- name: lane_head
SELECT pos FROM jobs WHERE queue = ? AND state = 2 AND lane = ? ORDER BY pos LIMIT 1

-- name: delete_lane
DELETE FROM lanes WHERE id = ? RETURNING grp, blocked

-- name: delete_group
DELETE FROM groups WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM lanes WHERE grp = ?1) RETURNING class

-- name: delete_class
DELETE FROM classes WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM groups WHERE class = ?1)

-- name: classes
SELECT id, priority, task, version, rate, max_running FROM classes WHERE queue = ?

-- name: find_class
SELECT id, priority, task, version, rate, max_running FROM classes
WHERE queue = ? AND priority = ? AND task = ? AND version = ?

-- name: open_classes
-- Each class of which a lane is free, with the lane that is next, in the order to look at them.
SELECT c.id, c.priority, c.task, c.version, c.rate, c.max_running,
  l.id, l.grp, l.group_name, l.rate_key, l.running_key, l.rate, l.max_running, l.head
FROM classes c JOIN lanes l ON l.id = (
  SELECT id FROM lanes
  WHERE grp = (SELECT id FROM groups WHERE class = c.id AND free > 0 ORDER BY turn LIMIT 1) AND blocked = 0
  ORDER BY head LIMIT 1)
WHERE c.queue = ? ORDER BY c.priority, l.head

-- name: plain_lanes
-- The lanes of jobs without group and keys, for a batch that is going to need several.
SELECT c.priority, c.task, c.version, c.rate, c.max_running, l.id, l.head FROM classes c
JOIN groups g ON g.class = c.id AND g.name = '' JOIN lanes l ON l.grp = g.id AND l.rate_key = '' AND l.running_key = ''
WHERE c.queue = ? LIMIT 1000

-- name: next_lanes
-- Of the group whose turn it is: its lane with the oldest head, and the next, up to whose head jobs may be
-- taken in one go. `alone` says that no other group has a turn to take.
SELECT l.id, l.grp, l.group_name, l.rate_key, l.running_key, l.rate, l.max_running, l.head,
  (SELECT count(*) = 1 FROM (SELECT 1 FROM groups WHERE class = ?1 AND free > 0 LIMIT 2)) AS alone
FROM lanes l WHERE l.grp = (SELECT id FROM groups WHERE class = ?1 AND free > 0 ORDER BY turn LIMIT 1)
  AND l.blocked = 0 ORDER BY l.head LIMIT 2

-- name: only_group
SELECT count(*) = 1 FROM (SELECT 1 FROM groups WHERE class = ? LIMIT 2)

-- name: anything_first
-- Whether there is anything to do before the walk: jobs that fell due, lanes that are free again, offers.
SELECT EXISTS (SELECT 1 FROM jobs WHERE queue = ?1 AND state IN (1, 4) AND lane = 0 AND pos <= ?2)
    OR EXISTS (SELECT 1 FROM durables WHERE queue = ?1 AND wake <= ?2),
  EXISTS (SELECT 1 FROM lanes WHERE queue = ?1 AND blocked > 0 AND blocked <= ?2),
  EXISTS (SELECT 1 FROM offers WHERE queue = ?1)

-- name: lane_jobs
SELECT j.seq, j.id, j.run, j.failures, j.crashes, j.suspect, j.expires, j.deadline_at, j.grp, j.running_key,
  b.envelope, j.durable
FROM jobs j LEFT JOIN bodies b ON b.job = j.seq
WHERE j.queue = ? AND j.state = 2 AND j.lane = ? AND j.pos < ? ORDER BY j.pos LIMIT ?

-- name: take_turn
UPDATE groups SET turn = ? WHERE id = ?

-- name: block_lane
UPDATE lanes SET blocked = ? WHERE id = ?

-- name: unblock_lane
UPDATE lanes SET blocked = 0 WHERE id = ? AND blocked > 0 RETURNING grp

-- name: unblock_due
UPDATE lanes SET blocked = 0 WHERE queue = ? AND blocked > 0 AND blocked <= ? RETURNING grp

-- name: unblock_key
UPDATE lanes SET blocked = 0 WHERE queue = ? AND running_key = ? AND blocked > 0 RETURNING grp

-- name: unblock_rate
UPDATE lanes SET blocked = 0 WHERE queue = ? AND rate_key = ? AND rate IS NOT ? AND blocked > 0 AND blocked < ?
RETURNING grp

-- name: unblock_group
UPDATE lanes SET blocked = 0 WHERE queue = ? AND group_name = ? AND blocked > 0 RETURNING grp

-- name: unblock_timed
UPDATE lanes SET blocked = 0 WHERE queue IN (SELECT id FROM queues WHERE ns = ?) AND blocked > 0 AND blocked < ?
RETURNING grp

-- name: unblock_queue
UPDATE lanes SET blocked = 0 WHERE queue = ? AND blocked > 0 RETURNING grp

-- name: start_job
UPDATE jobs SET state = 3, lane = 0, pos = ?, run = ?, runs = 1, started = ?, expires = NULL
WHERE seq = ?

-- name: insert_run
INSERT INTO runs (session, job, run, queue, since, task, grp, running_key) VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: promote_job
UPDATE jobs SET state = 2, lane = ?, pos = ?, line = ?, expires = ? WHERE seq = ?

-- name: next_due
SELECT min(pos) FROM (
  SELECT min(pos) AS pos FROM jobs WHERE queue = ?1 AND state = 1 AND lane = 0
  UNION ALL
  SELECT min(pos) FROM jobs WHERE queue = ?1 AND state = 4 AND lane = 0
  UNION ALL
  SELECT min(wake) FROM durables WHERE queue = ?1 AND wake IS NOT NULL
)

-- name: offers
SELECT job FROM offers WHERE queue = ? ORDER BY seq

-- name: insert_offer
INSERT INTO offers (queue, job) VALUES (?, ?)

-- name: delete_offer
DELETE FROM offers WHERE job = ?

-- name: running_queue
SELECT count(*) FROM runs WHERE queue = ?

-- name: running_task
SELECT count(*) FROM runs WHERE queue = ? AND task = ?

-- name: running_group
SELECT count(*) FROM runs WHERE queue = ? AND grp = ?

-- name: running_key
SELECT count(*) FROM runs WHERE queue = ? AND running_key = ?

-- name: rate_used
SELECT tat FROM rates WHERE queue = ? AND scope = ? AND name = ?

-- name: use_rate
INSERT INTO rates (queue, scope, name, tat) VALUES (?, ?, ?, ?)
ON CONFLICT (queue, scope, name) DO UPDATE SET tat = excluded.tat

-- name: count_ready
SELECT count(*) FROM jobs WHERE queue = ? AND state = 2

-- name: oldest_unimportant
-- A job that has started is not dropped, nor is a node.
SELECT j.seq FROM classes c JOIN groups g ON g.class = c.id JOIN lanes l ON l.grp = g.id
JOIN jobs j ON j.seq = (SELECT seq FROM jobs WHERE queue = ?1 AND state = 2 AND lane = l.id
  AND run = 0 AND node IS NULL ORDER BY pos LIMIT 1)
WHERE c.queue = ?1 AND c.priority >= ?2 ORDER BY c.priority DESC, j.pos LIMIT 1
