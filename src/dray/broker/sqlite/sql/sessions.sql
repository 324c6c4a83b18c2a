-- name: find_session
SELECT id, expires, request, reply, epoch FROM sessions WHERE ns = ? AND name = ?

-- name: next_epoch
UPDATE namespaces SET opened = iif(opened, opened + 1, max(1, ?2)) WHERE id = ?1 RETURNING opened

-- name: open_session
INSERT INTO sessions (ns, name, epoch, lease, expires) VALUES (?, ?, ?, ?, ?)

-- name: keep_session
UPDATE sessions SET lease = ?, expires = ? WHERE id = ?

-- name: mind_the_clock
-- After the clock went back no lease ends later than if it had been renewed just now.
UPDATE sessions SET expires = ?1 + lease WHERE ns = ?2 AND expires > ?1 + lease

-- name: remember_reply
UPDATE sessions SET request = ?, reply = ? WHERE id = ?

-- name: delete_session
DELETE FROM sessions WHERE id = ?

-- name: delete_voids
DELETE FROM voids WHERE session = ?

-- name: held
SELECT job, run FROM runs WHERE session = ?

-- name: held_first
SELECT job, run FROM runs WHERE session = ? ORDER BY job, run LIMIT ?

-- name: held_jobs
-- For a repeated take: what of the last reply is still held.
SELECT r.job, r.run, j.failures, j.crashes, j.suspect, b.envelope, j.priority, j.version, j.id,
  j.deadline_at, j.durable
FROM runs r JOIN jobs j ON j.seq = r.job LEFT JOIN bodies b ON b.job = r.job WHERE r.session = ?

-- name: asked_to_stop
SELECT j.id, r.run, r.forced FROM runs r JOIN jobs j ON j.seq = r.job
WHERE r.session = ? AND j.cancel IS NOT NULL ORDER BY r.since, r.job

-- name: voids
SELECT id, run FROM voids WHERE session = ?

-- name: heard_voids
UPDATE voids SET heard = 1 WHERE session = ?

-- name: heard_to_stop
UPDATE runs SET heard = 1 WHERE session = ? AND job IN (SELECT seq FROM jobs WHERE cancel IS NOT NULL)

-- name: unreported
-- Notifications that `renew` has not reported to the session yet.
SELECT EXISTS (SELECT 1 FROM voids WHERE session = ?1 AND NOT heard)
  OR EXISTS (SELECT 1 FROM runs r JOIN jobs j ON j.seq = r.job
    WHERE r.session = ?1 AND NOT r.heard AND j.cancel IS NOT NULL)

-- name: insert_void
INSERT OR IGNORE INTO voids (session, id, run) VALUES (?, ?, ?)

-- name: delete_void
DELETE FROM voids WHERE session = ? AND id = ? AND run = ?

-- name: delete_run
DELETE FROM runs WHERE session = ? AND job = ? AND run = ?

-- name: end_run
DELETE FROM runs WHERE session = ? AND job = ? AND run = ?
RETURNING since, (SELECT name FROM sessions WHERE id = session), forced

-- name: force_runs
-- `renew` reports them to their sessions again.
UPDATE runs SET forced = 1, heard = 0 WHERE job = ?

-- name: is_forced
SELECT EXISTS (SELECT 1 FROM runs WHERE job = ? AND forced)

-- name: past_of
SELECT runs FROM past WHERE job = ?

-- name: save_past
INSERT INTO past (job, runs) VALUES (?, ?) ON CONFLICT (job) DO UPDATE SET runs = excluded.runs

-- name: delete_past
DELETE FROM past WHERE job = ?

-- name: runs_of
-- There are never more rows than slots in all workers, so looking through them is cheap.
SELECT r.session, r.run, r.since, r.progress, s.name FROM runs r JOIN sessions s ON s.id = r.session
WHERE r.job = ? ORDER BY r.run

-- name: report_progress
UPDATE runs SET progress = ? WHERE session = ? AND run = ?
  AND job = (SELECT seq FROM jobs WHERE ns = ? AND id = ?)
RETURNING queue

-- name: settling
SELECT j.id, j.seq, j.queue, j.state, j.settled, j.runs, j.run, j.cancel, j.key, j.once, j.result_ttl,
  j.offered, j.durable, j.owner, j.max_running, j.grp, j.running_key, j.task, r.run
FROM json_each(?1) e CROSS JOIN jobs j ON j.ns = ?2 AND j.id = e.value
LEFT JOIN runs r ON r.session = ?3 AND r.job = j.seq

-- name: succeed
UPDATE jobs SET state = 5, lane = 0, pos = ?, settled = ?, runs = 0, finished = ?, result = ? WHERE seq = ?

-- name: lapsed
SELECT id, name FROM sessions WHERE ns = ? AND expires <= ? ORDER BY id LIMIT ?
