-- name: record
SELECT j.seq, j.state, j.pos, j.created, j.expires, j.run, j.settled, j.failures, j.crashes,
  j.suspect, j.cancel, j.started, j.finished, j.id, j.task, j.priority, j.version, q.name, j.result_ttl,
  b.envelope, j.deadline_at, coalesce(j.result, e.result), e.error, e.reason, j.owner,
  x.memos, x.replayed, x.suspended, x.undo, x.orphaned_by, p.runs
FROM jobs j JOIN queues q ON q.id = j.queue LEFT JOIN bodies b ON b.job = j.seq LEFT JOIN ends e ON e.job = j.seq
LEFT JOIN past p ON p.job = j.seq LEFT JOIN durables x ON j.durable AND x.job = j.seq

-- name: watch
INSERT OR IGNORE INTO watchers (job, watcher) VALUES (?, ?)

-- name: watch_instead
UPDATE watchers SET job = ? WHERE job = ?

-- name: arrived
-- In the order of arrival, which no edit changes.
SELECT j.seq, j.id, j.state, q.name, j.task, j.priority, j.grp, j.key FROM jobs j JOIN queues q ON q.id = j.queue
WHERE j.seq > ? AND j.ns = ? ORDER BY j.seq LIMIT ?

-- name: arrived_before
SELECT j.seq, j.id, j.created, j.state, q.name, j.task, j.priority, j.grp, j.key
FROM jobs j JOIN queues q ON q.id = j.queue WHERE j.seq < ? AND j.ns = ? ORDER BY j.seq DESC LIMIT ?

-- name: arrived_as
SELECT j.seq, j.id, j.created, j.state, q.name, j.task, j.priority, j.grp, j.key
FROM jobs j JOIN queues q ON q.id = j.queue WHERE j.seq = ?

-- name: seqs_of_state
SELECT seq FROM jobs WHERE queue = ? AND state = ? LIMIT ?

-- name: all_queues
SELECT id, name, paused, limits FROM queues WHERE ns = ? ORDER BY name

-- name: counts
SELECT state, count(*) FROM jobs WHERE queue = ? GROUP BY state

-- name: ready_by_priority
SELECT priority, count(*), min(created) FROM jobs WHERE queue = ? AND state = 2 GROUP BY priority ORDER BY priority

-- name: read_doc
SELECT value, version, expires FROM docs WHERE ns = ? AND kind = ? AND name = ? AND (expires IS NULL OR expires > ?)

-- name: read_docs
SELECT name, value, version, expires FROM docs WHERE ns = ? AND kind = ? AND (expires IS NULL OR expires > ?)
ORDER BY name

-- name: write_doc
INSERT INTO docs (ns, kind, name, value, version, expires) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (ns, kind, name) DO UPDATE SET value = excluded.value, version = excluded.version,
  expires = excluded.expires

-- name: delete_doc
DELETE FROM docs WHERE ns = ? AND kind = ? AND name = ?

-- name: feed_ends
SELECT q.id, q.name, q.entries, (SELECT min(number) FROM events WHERE queue = q.id) AS oldest
FROM queues q WHERE q.ns = ? AND oldest IS NOT NULL ORDER BY q.name

-- name: read_entries
SELECT number, at, body FROM events WHERE queue = ? AND number > ? ORDER BY number LIMIT ?

-- name: set_paused
UPDATE queues SET paused = ? WHERE id = ?

-- name: set_limits
UPDATE queues SET limits = ? WHERE id = ?

-- name: set_task
INSERT INTO task_settings (queue, task, paused, limits) VALUES (?, ?, ?, ?)
ON CONFLICT (queue, task) DO UPDATE SET paused = excluded.paused, limits = excluded.limits

-- name: find_task
SELECT paused, limits FROM task_settings WHERE queue = ? AND task = ?

-- name: forget_task
DELETE FROM task_settings WHERE queue = ? AND task = ? AND paused IS NULL AND limits IS NULL
