-- Each statement lists what must not exist in the namespace ?1.

-- name: audit_ready_without_lane
SELECT id || ' is ready but stands in no lane' FROM jobs
WHERE ns = ?1 AND state = 2 AND lane NOT IN (SELECT id FROM lanes)

-- name: audit_wrong_lane
SELECT j.id || ' stands in the lane of another class or group' FROM jobs j JOIN lanes l ON l.id = j.lane
JOIN groups g ON g.id = l.grp JOIN classes c ON c.id = g.class
WHERE j.ns = ?1 AND j.state = 2 AND (j.queue, j.priority, j.task, j.version, coalesce(j.grp, ''),
  coalesce(j.grp, ''), coalesce(j.rate_key, ''), coalesce(j.running_key, ''))
  IS NOT (c.queue, c.priority, c.task, c.version, g.name, l.group_name, l.rate_key, l.running_key)

-- name: audit_lane_heads
SELECT 'lane ' || l.id || ' has the wrong head' FROM lanes l JOIN queues q ON q.id = l.queue
WHERE q.ns = ?1 AND l.head IS NOT
  (SELECT min(pos) FROM jobs j WHERE j.queue = l.queue AND j.state = 2 AND j.lane = l.id)

-- name: audit_group_without_lanes
SELECT 'group ' || g.name || ' of class ' || g.class || ' has no lanes'
FROM groups g JOIN classes c ON c.id = g.class JOIN queues q ON q.id = c.queue
WHERE q.ns = ?1 AND g.id NOT IN (SELECT grp FROM lanes)

-- name: audit_free_lanes
SELECT 'group ' || g.name || ' says ' || g.free || ' of its lanes are free'
FROM groups g JOIN classes c ON c.id = g.class JOIN queues q ON q.id = c.queue
WHERE q.ns = ?1 AND g.free <> (SELECT count(*) FROM lanes l WHERE l.grp = g.id AND l.blocked = 0)

-- name: audit_class_without_groups
SELECT 'class ' || c.id || ' has no groups' FROM classes c JOIN queues q ON q.id = c.queue
WHERE q.ns = ?1 AND c.id NOT IN (SELECT class FROM groups)

-- name: audit_lane_without_group
SELECT 'lane ' || l.id || ' has no group' FROM lanes l JOIN queues q ON q.id = l.queue
WHERE q.ns = ?1 AND l.grp NOT IN (SELECT id FROM groups)

-- name: audit_run_counts
SELECT id || ' says it has ' || runs || ' runs' FROM jobs j
WHERE ns = ?1 AND runs <> (SELECT count(*) FROM runs r WHERE r.job = j.seq)

-- name: audit_held_without_run
SELECT id || ' is held by nobody' FROM jobs WHERE ns = ?1 AND state = 3 AND runs = 0

-- name: audit_run_without_hold
SELECT id || ' has a run but is not held' FROM jobs WHERE ns = ?1 AND state <> 3 AND runs > 0

-- name: audit_too_many_runs
SELECT id || ' has ' || runs || ' valid runs' FROM jobs WHERE ns = ?1 AND runs > 1 + speculate

-- name: audit_run_without_session
SELECT 'run ' || r.run || ' of ' || j.id || ' has no session' FROM runs r JOIN jobs j ON j.seq = r.job
WHERE j.ns = ?1 AND r.session NOT IN (SELECT id FROM sessions)

-- name: audit_run_newer_than_job
SELECT 'run ' || r.run || ' of ' || j.id || ' is newer than its newest' FROM runs r JOIN jobs j ON j.seq = r.job
WHERE j.ns = ?1 AND r.run > j.run

-- name: audit_waiting_for_nothing
SELECT id || ' waits for nothing' FROM jobs
WHERE ns = ?1 AND state = 0 AND seq NOT IN (SELECT job FROM dependencies WHERE job IS NOT NULL)
  AND seq NOT IN (SELECT job FROM durables WHERE open)

-- name: audit_dependency_of_others
SELECT coalesce(j.id, d.job) || ' does not wait, but would be told of ' || d.dependency
FROM dependencies d LEFT JOIN jobs j ON j.seq = d.job WHERE d.ns = ?1 AND d.job IS NOT NULL AND j.state IS NOT 0

-- name: audit_remembered
SELECT d.dependency || ' remembers ' || d.id || ', but is no node' FROM dependencies d
LEFT JOIN jobs j ON j.ns = d.ns AND j.id = d.dependency WHERE d.ns = ?1 AND d.job IS NULL AND j.node IS NULL

-- name: audit_suspended
SELECT j.id || ' is suspended, or woken at some time, but its state is another' FROM durables x JOIN jobs j ON j.seq = x.job
WHERE j.ns = ?1 AND ((x.suspended IS NOT NULL AND j.state NOT IN (0, 1, 4))
  OR (x.wake IS NOT NULL AND (j.state <> 0 OR x.suspended IS NULL)) OR (x.open AND x.suspended IS NULL))

-- name: audit_undo
SELECT j.id || ' is finished but not undone, or its children were not told' FROM jobs j
WHERE j.ns = ?1 AND j.state IN (5, 6, 7) AND j.durable AND (EXISTS (SELECT 1 FROM children c WHERE c.job = j.seq)
  OR EXISTS (SELECT 1 FROM durables x WHERE x.job = j.seq AND x.undo IS NOT NULL))

-- name: audit_orphaned
SELECT j.id || ' is orphaned but not cancelled' FROM durables x JOIN jobs j ON j.seq = x.job
WHERE j.ns = ?1 AND x.orphaned_by IS NOT NULL AND j.state <> 7

-- name: audit_durable
SELECT id || ' lacks what makes it durable' FROM jobs
WHERE ns = ?1 AND durable AND seq NOT IN (SELECT job FROM durables)

-- name: audit_durable_of_others
SELECT 'durable ' || job || ' has no job that knows it' FROM durables
WHERE ?1 = ?1 AND job NOT IN (SELECT seq FROM jobs WHERE durable)

-- name: audit_memos
SELECT j.id || ' says it has ' || x.memos || ' entries in its log' FROM durables x JOIN jobs j ON j.seq = x.job
WHERE j.ns = ?1 AND x.memos <> (SELECT count(*) FROM memos m WHERE m.job = x.job)

-- name: audit_durable_parts
SELECT 'a part of durable job ' || job || ' has no job' FROM
  (SELECT job FROM memos UNION SELECT job FROM messages UNION SELECT job FROM children)
WHERE ?1 = ?1 AND job NOT IN (SELECT job FROM durables)

-- name: audit_key_of_nobody
SELECT 'key ' || k.key || ' belongs to a job that does not exist' FROM keys k JOIN queues q ON q.id = k.queue
WHERE q.ns = ?1 AND k.job NOT IN (SELECT seq FROM jobs)

-- name: audit_key_of_finished
SELECT 'key ' || k.key || ' belongs to ' || j.id || ', which is finished' FROM keys k JOIN jobs j ON j.seq = k.job
WHERE j.ns = ?1 AND j.state IN (5, 6, 7) AND k.until IS NULL

-- name: audit_without_key
SELECT j.id || ' is unfinished but does not have its key ' || j.key FROM jobs j
LEFT JOIN keys k ON k.queue = j.queue AND k.key = j.key
WHERE j.ns = ?1 AND j.state < 5 AND j.key IS NOT NULL AND j.key_ttl IS NULL AND k.job IS NOT j.seq

-- name: audit_offers
SELECT j.id || ' is offered but does not run' FROM offers o JOIN jobs j ON j.seq = o.job
WHERE j.ns = ?1 AND (j.state <> 3 OR j.offered = 0)

-- name: audit_offered
SELECT id || ' should be offered' FROM jobs WHERE ns = ?1 AND offered AND seq NOT IN (SELECT job FROM offers)

-- name: audit_expires
SELECT id || ' would expire though it is not ready' FROM jobs WHERE ns = ?1 AND expires IS NOT NULL AND state <> 2

-- name: audit_deadlines
SELECT id || ' lacks the moment of its deadline, or has one without a deadline' FROM jobs
WHERE ns = ?1 AND state < 5 AND (deadline IS NULL) <> (deadline_at IS NULL)
  AND seq NOT IN (SELECT job FROM durables WHERE undo IS NOT NULL)

-- name: audit_bodies
SELECT id || ' has no body' FROM jobs WHERE ns = ?1 AND seq NOT IN (SELECT job FROM bodies)

-- name: audit_orphan_bodies
SELECT 'body ' || job || ' has no job' FROM bodies WHERE ?1 = ?1 AND job NOT IN (SELECT seq FROM jobs)

-- name: audit_orphan_ends
SELECT 'end ' || job || ' has no job' FROM ends WHERE ns = ?1 AND job NOT IN (SELECT seq FROM jobs)

-- name: audit_orphan_past
SELECT 'past runs ' || job || ' have no job' FROM past WHERE ?1 = ?1 AND job NOT IN (SELECT seq FROM jobs)

-- name: audit_orphan_watchers
SELECT watcher || ' watches a job that does not exist' FROM watchers WHERE ?1 = ?1 AND job NOT IN (SELECT seq FROM jobs)
