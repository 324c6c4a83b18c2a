-- The next stretch of a table after a place in it, each row with whether it cannot be as it is.
-- ?1 namespace  ?2 how many rows  ?3.. the last row that was looked at
-- Columns: broken, then what the next stretch goes on from, then whatever the repair needs.

-- name: look_jobs
SELECT j.ns = ?1 AND (q.id IS NULL OR j.state NOT BETWEEN 0 AND 7 OR b.job IS NULL
  OR (j.state <> 3 AND j.runs > 0) OR (j.state = 3 AND j.runs = 0)
  OR (j.expires IS NOT NULL AND j.state <> 2)
  OR ((j.deadline IS NULL) <> (j.deadline_at IS NULL) AND j.state < 5 AND x.undo IS NULL)
  OR (j.durable AND x.job IS NULL)
  OR (j.offered <> 0) <> EXISTS (SELECT 1 FROM offers o WHERE o.job = j.seq) OR (j.offered AND j.state <> 3)
  OR (j.state = 0 AND x.open IS NOT 1 AND NOT EXISTS (SELECT 1 FROM dependencies d WHERE d.job = j.seq))
  OR (j.state = 2) <> (j.lane <> 0)
  OR (j.state = 2 AND (j.pos <> j.line OR (j.queue, j.priority, j.task, j.version, coalesce(j.grp, ''),
    coalesce(j.grp, ''), coalesce(j.rate_key, ''), coalesce(j.running_key, ''))
    IS NOT (c.queue, c.priority, c.task, c.version, g.name, l.group_name, l.rate_key, l.running_key)))
  OR (j.key IS NOT NULL AND j.key_ttl IS NULL AND j.state < 5 AND NOT EXISTS (
    SELECT 1 FROM keys k LEFT JOIN jobs h ON h.seq = k.job
    WHERE k.queue = j.queue AND k.key = j.key AND (h.seq = j.seq OR (h.queue = j.queue AND h.key = j.key))))),
  j.seq, j.state = 3, j.runs
FROM (SELECT * FROM jobs WHERE seq > ?3 ORDER BY seq LIMIT ?2) j
LEFT JOIN queues q ON q.id = j.queue LEFT JOIN bodies b ON b.job = j.seq
LEFT JOIN durables x ON j.durable AND x.job = j.seq
LEFT JOIN lanes l ON l.id = j.lane AND j.state = 2 LEFT JOIN groups g ON g.id = l.grp LEFT JOIN classes c ON c.id = g.class

-- name: look_job_runs
-- How many runs jobs of a stretch have: one pass over the runs, which are few.
SELECT job, count(*) FROM runs WHERE job BETWEEN ? AND ? GROUP BY job

-- name: look_lanes
SELECT (q.ns IS NULL OR q.ns = ?1) AND (q.id IS NULL OR g.id IS NULL OR l.head IS NOT
  (SELECT min(pos) FROM jobs j WHERE j.queue = l.queue AND j.state = 2 AND j.lane = l.id)), l.id, l.queue
FROM (SELECT * FROM lanes WHERE id > ?3 ORDER BY id LIMIT ?2) l
LEFT JOIN queues q ON q.id = l.queue LEFT JOIN groups g ON g.id = l.grp

-- name: look_groups
SELECT (q.ns IS NULL OR q.ns = ?1) AND (
  g.free <> (SELECT count(*) FROM lanes l WHERE l.grp = g.id AND l.blocked = 0)
  OR NOT EXISTS (SELECT 1 FROM lanes l WHERE l.grp = g.id)), g.id
FROM (SELECT * FROM groups WHERE id > ?3 ORDER BY id LIMIT ?2) g
LEFT JOIN classes c ON c.id = g.class LEFT JOIN queues q ON q.id = c.queue

-- name: look_classes
SELECT (q.ns IS NULL OR q.ns = ?1) AND NOT EXISTS (SELECT 1 FROM groups g WHERE g.class = c.id), c.id
FROM (SELECT * FROM classes WHERE id > ?3 ORDER BY id LIMIT ?2) c LEFT JOIN queues q ON q.id = c.queue

-- name: look_runs
SELECT (j.ns IS NULL OR j.ns = ?1) AND (s.id IS NULL OR j.state IS NOT 3 OR r.run > j.run), r.session, r.job, r.run
FROM (SELECT * FROM runs WHERE (session, job, run) > (?3, ?4, ?5) ORDER BY session, job, run LIMIT ?2) r
LEFT JOIN sessions s ON s.id = r.session LEFT JOIN jobs j ON j.seq = r.job

-- name: look_keys
SELECT (j.ns IS NULL OR j.ns = ?1) AND (
  j.seq IS NULL OR (j.queue, j.key) IS NOT (k.queue, k.key) OR (j.state >= 5 AND k.until IS NULL)), k.queue, k.key
FROM (SELECT * FROM keys WHERE (queue, key) > (?3, ?4) ORDER BY queue, key LIMIT ?2) k
LEFT JOIN jobs j ON j.seq = k.job

-- name: look_dependencies
-- The outbox holds a message about a dependency that has ended, unless the job waits on in spite of it. What a
-- node remembers has no job.
SELECT CASE WHEN d.job IS NULL THEN o.node IS NULL ELSE j.state IS NOT 0 OR (o.state BETWEEN 5 AND 7
    AND (o.state = 5 OR j.orphan IS NOT 'wait' OR EXISTS (SELECT 1 FROM durables x WHERE x.job = d.job AND x.suspended IS NOT NULL))
    AND NOT EXISTS (SELECT 1 FROM outbox m WHERE m.job = d.job AND m.dependency = d.dependency)) END,
  d.seq, d.dependency, d.job, j.state, o.state
FROM (SELECT * FROM dependencies WHERE seq > ?3 AND ns = ?1 ORDER BY seq LIMIT ?2) d
LEFT JOIN jobs j ON j.seq = d.job LEFT JOIN jobs o ON o.ns = ?1 AND o.id = d.dependency

-- name: look_durables
SELECT j.durable IS NOT 1 OR (j.ns = ?1 AND ((x.suspended IS NOT NULL AND j.state NOT IN (0, 1, 4))
  OR (x.wake IS NOT NULL AND (j.state <> 0 OR x.suspended IS NULL)) OR (x.open AND x.suspended IS NULL)
  OR (x.orphaned_by IS NOT NULL AND j.state <> 7)
  OR x.memos <> (SELECT count(*) FROM memos m WHERE m.job = x.job))), x.job
FROM (SELECT * FROM durables WHERE job > ?3 ORDER BY job LIMIT ?2) x LEFT JOIN jobs j ON j.seq = x.job

-- name: look_memos
SELECT x.job IS NULL, m.job, m.position
FROM (SELECT job, position FROM memos WHERE (job, position) > (?3, ?4) ORDER BY job, position LIMIT ?2) m
LEFT JOIN durables x ON x.job = m.job WHERE ?1 = ?1

-- name: look_messages
SELECT x.job IS NULL, m.job, m.name, m.number
FROM (SELECT job, name, number FROM messages WHERE (job, name, number) > (?3, ?4, ?5)
  ORDER BY job, name, number LIMIT ?2) m
LEFT JOIN durables x ON x.job = m.job WHERE ?1 = ?1

-- name: look_children
SELECT x.job IS NULL, c.seq, c.job FROM (SELECT * FROM children WHERE seq > ?3 ORDER BY seq LIMIT ?2) c
LEFT JOIN durables x ON x.job = c.job WHERE ?1 = ?1

-- name: drop_dependency
DELETE FROM dependencies WHERE seq = ?

-- name: count_memos
SELECT count(*), coalesce(sum(length(entry)), 0) FROM memos WHERE job = ?

-- name: look_offers
SELECT j.seq IS NULL, o.seq FROM (SELECT * FROM offers WHERE seq > ?3 ORDER BY seq LIMIT ?2) o
LEFT JOIN jobs j ON j.seq = o.job WHERE ?1 = ?1

-- name: look_bodies
SELECT j.seq IS NULL, b.job FROM (SELECT job FROM bodies WHERE job > ?3 ORDER BY job LIMIT ?2) b
LEFT JOIN jobs j ON j.seq = b.job WHERE ?1 = ?1

-- name: look_ends
SELECT j.seq IS NULL, e.job FROM (SELECT job FROM ends WHERE job > ?3 ORDER BY job LIMIT ?2) e
LEFT JOIN jobs j ON j.seq = e.job WHERE ?1 = ?1

-- name: look_past
SELECT j.seq IS NULL, p.job FROM (SELECT job FROM past WHERE job > ?3 ORDER BY job LIMIT ?2) p
LEFT JOIN jobs j ON j.seq = p.job WHERE ?1 = ?1

-- name: look_watchers
SELECT j.seq IS NULL, w.job, w.watcher
FROM (SELECT * FROM watchers WHERE (job, watcher) > (?3, ?4) ORDER BY job, watcher LIMIT ?2) w
LEFT JOIN jobs j ON j.seq = w.job WHERE ?1 = ?1

-- name: look_voids
SELECT s.id IS NULL, v.session, v.id, v.run
FROM (SELECT * FROM voids WHERE (session, id, run) > (?3, ?4, ?5) ORDER BY session, id, run LIMIT ?2) v
LEFT JOIN sessions s ON s.id = v.session WHERE ?1 = ?1

-- name: drop_offer
DELETE FROM offers WHERE seq = ?

-- name: drop_watcher
DELETE FROM watchers WHERE job = ? AND watcher = ?

-- name: drop_group
DELETE FROM groups WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM lanes WHERE grp = ?1)

-- name: count_free_lanes
UPDATE groups SET free = (SELECT count(*) FROM lanes WHERE grp = ?1 AND blocked = 0) WHERE id = ?1

-- name: jobs_of_lane
SELECT seq FROM jobs WHERE queue = ? AND state = 2 AND lane = ? ORDER BY pos LIMIT ?

-- name: drop_key
DELETE FROM keys WHERE queue = ? AND key = ?

-- name: runs_in_store
SELECT r.session, r.run, s.id IS NOT NULL AND r.run <= ?2 FROM runs r LEFT JOIN sessions s ON s.id = r.session
WHERE r.job = ?1

-- name: raw_job
SELECT j.state, j.finished, q.id IS NULL, b.envelope, j.id, j.priority, j.version FROM jobs j
LEFT JOIN queues q ON q.id = j.queue LEFT JOIN bodies b ON b.job = j.seq WHERE j.seq = ?

-- name: set_state
UPDATE jobs SET state = ?, lane = 0 WHERE seq = ?

-- name: set_queue
UPDATE jobs SET queue = ?, lane = 0 WHERE seq = ?

-- name: offered_job
SELECT EXISTS (SELECT 1 FROM offers WHERE job = ?)

-- name: key_owner
SELECT h.seq FROM keys k JOIN jobs h ON h.seq = k.job
WHERE k.queue = ?1 AND k.key = ?2 AND h.queue = ?1 AND h.key = ?2

-- name: in_its_lane
SELECT EXISTS (SELECT 1 FROM jobs j JOIN lanes l ON l.id = j.lane JOIN groups g ON g.id = l.grp
  JOIN classes c ON c.id = g.class
  WHERE j.seq = ? AND j.pos = j.line AND (j.queue, j.priority, j.task, j.version, coalesce(j.grp, ''),
    coalesce(j.rate_key, ''), coalesce(j.running_key, ''))
    = (c.queue, c.priority, c.task, c.version, g.name, l.rate_key, l.running_key) AND l.group_name = g.name)
