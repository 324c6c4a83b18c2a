-- Statements that both databases understand, with ? for values.

-- name: read_feeds
SELECT queue, number, at FROM feeds WHERE ns = ?

-- name: open_gaps
SELECT queue, after, until, at, reading FROM gaps WHERE ns = ? AND mended IS NULL ORDER BY at

-- name: read_gaps
SELECT queue, after, until, at, mended FROM gaps WHERE ns = ? ORDER BY at

-- name: note_reading
UPDATE gaps SET reading = ? WHERE ns = ? AND queue = ? AND mended IS NULL

-- name: mend_gaps
-- Gaps that were noticed before the reading of the queue began; a later one is read for again.
UPDATE gaps SET mended = ? WHERE ns = ? AND queue = ? AND mended IS NULL AND at <= ?

-- name: read_rollup
SELECT succeeded, failed, other, took, waited FROM rollups
WHERE ns = ? AND unit = ? AND start = ? AND queue = ? AND task = ?

-- name: read_rollups
SELECT start, queue, task, succeeded, failed, other, took, waited FROM rollups
WHERE ns = ? AND unit = ? AND start >= ?

-- name: read_error
SELECT count, first, last, last_job, versions FROM errors WHERE ns = ? AND fingerprint = ? AND queue = ?

-- name: read_errors
SELECT fingerprint, queue, task, type, message, count, first, last, last_job, versions FROM errors
WHERE ns = ? AND last >= ? ORDER BY last DESC LIMIT ?

-- name: read_error_hours
SELECT fingerprint, queue, hour, count FROM error_hours WHERE ns = ? AND hour >= ?

-- name: read_attempts
SELECT run, task, queue, started, ended, outcome, worker, version, error_type, error, traceback, fingerprint
FROM attempts WHERE ns = ? AND id = ? ORDER BY started, run

-- name: read_events
SELECT kind, run, at FROM events WHERE ns = ? AND id = ? ORDER BY at, number

-- name: bytes_of_jobs
SELECT COALESCE(sum(bytes), 0), count(*) FROM jobs WHERE ns = ?

-- name: oldest_job
SELECT min(seq) FROM jobs WHERE ns = ?

-- name: prune_jobs
DELETE FROM jobs WHERE seq IN (SELECT seq FROM jobs WHERE ns = ? AND seq < ? ORDER BY seq LIMIT ?) RETURNING seq, bytes

-- name: prune_attempts
DELETE FROM attempts WHERE (ns, id, created, run) IN (
  SELECT ns, id, created, run FROM attempts WHERE ns = ? AND started < ? ORDER BY started LIMIT ?) RETURNING run

-- name: prune_events
DELETE FROM events WHERE (ns, id, run, kind, at) IN (
  SELECT ns, id, run, kind, at FROM events WHERE ns = ? AND at < ? ORDER BY at LIMIT ?) RETURNING run

-- name: prune_rollups
DELETE FROM rollups WHERE ns = ? AND unit = ? AND start < ? RETURNING unit

-- name: prune_errors
DELETE FROM errors WHERE ns = ? AND last < ? RETURNING count

-- name: prune_error_hours
DELETE FROM error_hours WHERE ns = ? AND hour < ? RETURNING count

-- name: prune_gaps
DELETE FROM gaps WHERE ns = ? AND mended < ? RETURNING after
