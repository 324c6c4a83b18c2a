-- name: insert_job
-- The seq is given, so that a batch needs no reply from each row.
INSERT INTO jobs (seq, ns, id, queue, state, lane, pos, line, created, expires, task, priority,
  version, grp, rate, rate_key, max_running, running_key, key, key_ttl, once, ttl, due, orphan, result_ttl,
  max_crashes, speculate, deadline, deadline_at, owner, node)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: insert_body
INSERT INTO bodies (job, envelope) VALUES (?, ?)

-- name: last_seq
SELECT coalesce(max(seq), 0) FROM jobs

-- name: known_ids
SELECT id FROM jobs WHERE ns = ? AND id IN (SELECT value FROM json_each(?))

-- name: states_of
SELECT id, state, node FROM jobs WHERE ns = ? AND id IN (SELECT value FROM json_each(?))

-- name: state_of
SELECT state, node, seq FROM jobs WHERE ns = ? AND id = ?

-- name: job_columns
-- In the order in which `JobRow` unpacks them.
SELECT seq, id, queue, state, lane, pos, run, settled, failures, crashes, suspect, runs, offered,
  line, created, started, finished, expires, cancel, task, priority, version, grp, rate, rate_key,
  max_running, running_key, key, key_ttl, once, ttl, due, orphan, result_ttl, max_crashes, speculate,
  deadline, deadline_at, owner, node, durable
FROM jobs

-- name: save_job
UPDATE jobs SET state = ?, lane = ?, pos = ?, run = ?, settled = ?, failures = ?, crashes = ?,
  suspect = ?, runs = ?, offered = ?, line = ?, started = ?, finished = ?, expires = ?, cancel = ?,
  priority = ?
WHERE seq = ?

-- name: set_deadline
UPDATE jobs SET deadline_at = ? WHERE seq = ?

-- name: leave_line
UPDATE jobs SET state = -1, lane = 0 WHERE seq = ?

-- name: delete_job
DELETE FROM jobs WHERE seq = ?

-- name: delete_body
DELETE FROM bodies WHERE job = ?

-- name: body_of
SELECT envelope FROM bodies WHERE job = ?

-- name: next_version
-- It begins with the time, so that a new file does not repeat the numbers of one that was lost.
UPDATE namespaces SET counter = iif(counter, counter + 1, max(1, ?2)) WHERE id = ?1 RETURNING counter

-- name: save_end
INSERT INTO ends (job, result, error, reason, ns, expires) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (job) DO UPDATE SET result = excluded.result, error = coalesce(excluded.error, error),
  reason = excluded.reason, expires = excluded.expires

-- name: clear_reason
UPDATE ends SET reason = NULL WHERE job = ?

-- name: drop_result
UPDATE jobs SET result = NULL WHERE seq = ?

-- name: delete_end
DELETE FROM ends WHERE job = ?

-- name: find_namespace
SELECT id FROM namespaces WHERE name = ?

-- name: insert_namespace
INSERT INTO namespaces (name) VALUES (?) ON CONFLICT DO NOTHING

-- name: find_queue
SELECT id, name, paused, limits, counter, entries, EXISTS (SELECT 1 FROM task_settings WHERE queue = id)
FROM queues WHERE ns = ? AND name = ?

-- name: find_queue_by_id
SELECT id, name, paused, limits, counter, entries, EXISTS (SELECT 1 FROM task_settings WHERE queue = id)
FROM queues WHERE id = ?

-- name: insert_queue
INSERT INTO queues (ns, name) VALUES (?, ?) RETURNING id

-- name: task_settings
SELECT task, paused, limits FROM task_settings WHERE queue = ?

-- name: save_queue
UPDATE queues SET counter = ?, entries = ? WHERE id = ?

-- name: insert_entry
INSERT INTO events (queue, number, at, body) VALUES (?, ?, ?, ?)

-- name: trim_entries
DELETE FROM events WHERE queue = ? AND number <= ?

-- name: key_holder
SELECT job FROM keys WHERE queue = ? AND key = ? AND (until IS NULL OR until > ?)

-- name: claim_key
INSERT INTO keys (queue, key, job, until) VALUES (?, ?, ?, ?)
ON CONFLICT (queue, key) DO UPDATE SET job = excluded.job, until = excluded.until

-- name: free_key
DELETE FROM keys WHERE queue = ? AND key = ? AND job = ?

-- name: insert_dependency
INSERT INTO dependencies (ns, dependency, id, job) VALUES (?, ?, ?, ?)
ON CONFLICT (ns, dependency, id) DO UPDATE SET job = excluded.job

-- name: remember_dependant
-- Of a job that need not wait for a node: only that it depends on it.
INSERT OR IGNORE INTO dependencies (ns, dependency, id) VALUES (?, ?, ?)

-- name: dependants
SELECT job FROM dependencies WHERE ns = ? AND dependency = ? AND job IS NOT NULL ORDER BY seq

-- name: remembered
SELECT d.id, j.seq FROM dependencies d JOIN jobs j ON j.ns = d.ns AND j.id = d.id
WHERE d.ns = ? AND d.dependency = ? ORDER BY d.seq

-- name: forget_dependants
DELETE FROM dependencies WHERE ns = ? AND dependency = ? AND job IS NULL

-- name: dependencies
SELECT dependency FROM dependencies WHERE job = ? ORDER BY dependency

-- name: dependency_done
DELETE FROM dependencies WHERE ns = ?1 AND dependency = ?2 AND job = ?3
  AND NOT EXISTS (SELECT 1 FROM jobs WHERE ns = ?1 AND id = ?2 AND node IS NOT NULL)

-- name: node_done
UPDATE dependencies SET job = NULL WHERE ns = ? AND dependency = ? AND job = ?

-- name: stop_waiting_for_nodes
UPDATE dependencies SET job = NULL
WHERE job = ? AND EXISTS (
  SELECT 1 FROM jobs j WHERE j.ns = dependencies.ns AND j.id = dependencies.dependency AND j.node IS NOT NULL)

-- name: stop_waiting
DELETE FROM dependencies WHERE job = ?

-- name: post
INSERT INTO outbox (ns, job, dependency, state, kind, target) VALUES (?, ?, ?, ?, ?, ?)

-- name: posted
SELECT seq, job, dependency, state, kind, target FROM outbox WHERE ns = ? ORDER BY seq LIMIT 1

-- name: delivered
DELETE FROM outbox WHERE seq = ?

-- name: any_listener
-- Any watcher or dependency at all: usually there is none, and then no job need be looked up.
SELECT EXISTS (SELECT 1 FROM watchers), EXISTS (SELECT 1 FROM dependencies)

-- name: watchers_of
DELETE FROM watchers WHERE job = ? RETURNING watcher

-- name: send_mail
INSERT INTO mail (ns, watcher, id, at) VALUES (?, ?, ?, ?)
