-- Statements that only PostgreSQL has in this form. Those that write get one array per column.

-- name: known_jobs
SELECT id, created, seq, worker, progress FROM jobs WHERE ns = ? AND id IN (SELECT jsonb_array_elements_text(?::jsonb))

-- name: last_in_ms
SELECT ms, (SELECT max(seq) FROM jobs WHERE seq >= ms << 20 AND seq < (ms + 1) << 20)
FROM (SELECT jsonb_array_elements_text(?::jsonb)::bigint AS ms) AS wanted

-- name: delete_jobs
DELETE FROM jobs WHERE seq = ANY(?::bigint[])

-- name: put_jobs
INSERT INTO jobs (seq, ns, id, created, task, queue, state, priority, attempt, runs, due, started, finished, worker, job_key, job_group,
  parent, description, tags, args, result, progress, error_type, error, traceback, fingerprint, reason, bytes, search)
SELECT
  r.seq, r.ns, r.id, r.created, r.task, r.queue, r.state, r.priority, r.attempt, r.runs, r.due, r.started,
  r.finished, r.worker, r.job_key, r.job_group, r.parent, r.description, r.tags::jsonb, r.args::jsonb,
  r.result::jsonb, r.progress::jsonb, r.error_type, r.error, r.traceback, r.fingerprint, r.reason, r.bytes,
  r.search::tsvector
FROM unnest(
  ?::bigint[], ?::text[], ?::text[], ?::bigint[], ?::text[], ?::text[], ?::text[], ?::bigint[], ?::bigint[],
  ?::bigint[], ?::bigint[], ?::bigint[], ?::bigint[], ?::text[], ?::text[], ?::text[], ?::text[], ?::text[],
  ?::text[], ?::text[], ?::text[], ?::text[], ?::text[], ?::text[], ?::text[], ?::text[], ?::text[], ?::bigint[],
  ?::text[]
) AS r (seq, ns, id, created, task, queue, state, priority, attempt, runs, due, started, finished, worker, job_key, job_group,
  parent, description, tags, args, result, progress, error_type, error, traceback, fingerprint, reason, bytes, search)

-- name: put_attempts
INSERT INTO attempts (ns, id, created, run, task, queue, started, ended, outcome, worker, version, waited, error_type, error, traceback,
  fingerprint)
SELECT * FROM unnest(
  ?::text[], ?::text[], ?::bigint[], ?::bigint[], ?::text[], ?::text[], ?::bigint[], ?::bigint[], ?::text[],
  ?::text[], ?::text[], ?::bigint[], ?::text[], ?::text[], ?::text[], ?::text[]
)
ON CONFLICT (ns, id, created, run) DO UPDATE SET
  ended = excluded.ended, outcome = excluded.outcome, worker = COALESCE(excluded.worker, attempts.worker),
  version = COALESCE(excluded.version, attempts.version), error_type = excluded.error_type, error = excluded.error,
  traceback = excluded.traceback, fingerprint = excluded.fingerprint
WHERE attempts.ended IS NULL AND excluded.ended IS NOT NULL
RETURNING id, created, run, ended

-- name: put_events
INSERT INTO events (ns, id, run, kind, at, queue, number)
SELECT * FROM unnest(?::text[], ?::text[], ?::bigint[], ?::text[], ?::bigint[], ?::text[], ?::bigint[])
ON CONFLICT DO NOTHING

-- name: put_rollups
INSERT INTO rollups (ns, unit, start, queue, task, succeeded, failed, other, took, waited)
SELECT * FROM unnest(?::text[], ?::bigint[], ?::bigint[], ?::text[], ?::text[], ?::bigint[], ?::bigint[], ?::bigint[],
  ?::bytea[], ?::bytea[])
ON CONFLICT (ns, unit, start, queue, task) DO UPDATE SET
  succeeded = excluded.succeeded, failed = excluded.failed, other = excluded.other, took = excluded.took,
  waited = excluded.waited

-- name: put_errors
INSERT INTO errors (ns, fingerprint, queue, task, type, message, count, first, last, last_job, versions)
SELECT * FROM unnest(?::text[], ?::text[], ?::text[], ?::text[], ?::text[], ?::text[], ?::bigint[], ?::bigint[],
  ?::bigint[], ?::text[], ?::text[])
ON CONFLICT (ns, fingerprint, queue) DO UPDATE SET
  message = excluded.message, count = excluded.count, first = excluded.first, last = excluded.last,
  last_job = excluded.last_job, versions = excluded.versions

-- name: put_error_hours
INSERT INTO error_hours (ns, fingerprint, queue, hour, count)
SELECT * FROM unnest(?::text[], ?::text[], ?::text[], ?::bigint[], ?::bigint[])
ON CONFLICT (ns, fingerprint, queue, hour) DO UPDATE SET count = error_hours.count + excluded.count

-- name: put_feeds
INSERT INTO feeds (ns, queue, number, at) SELECT * FROM unnest(?::text[], ?::text[], ?::bigint[], ?::bigint[])
ON CONFLICT (ns, queue) DO UPDATE SET number = excluded.number, at = excluded.at

-- name: put_gaps
INSERT INTO gaps (ns, queue, after, until, at, reading)
SELECT *, '' FROM unnest(?::text[], ?::text[], ?::bigint[], ?::bigint[], ?::bigint[]) ON CONFLICT DO NOTHING
