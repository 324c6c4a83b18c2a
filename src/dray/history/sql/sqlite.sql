-- Statements that only SQLite has in this form. Those that write are run once per row.

-- name: words_table
SELECT sql FROM sqlite_master WHERE name = 'job_words'

-- name: make_words
CREATE VIRTUAL TABLE job_words USING fts5 (words, error_words, tokenize = "unicode61 remove_diacritics 0")

-- name: make_plain_words
CREATE TABLE job_words (rowid INTEGER PRIMARY KEY, words TEXT NOT NULL, error_words TEXT NOT NULL)

-- name: known_jobs
SELECT id, created, seq, worker, progress FROM jobs WHERE ns = ? AND id IN (SELECT value FROM json_each(?))

-- name: last_in_ms
SELECT value, (SELECT max(seq) FROM jobs WHERE seq >= value << 20 AND seq < (value + 1) << 20) FROM json_each(?)

-- name: delete_jobs
DELETE FROM jobs WHERE seq = ?

-- name: delete_words
DELETE FROM job_words WHERE rowid = ?

-- name: put_jobs
INSERT INTO jobs (seq, ns, id, created, task, queue, state, priority, attempt, runs, due, started, finished, worker, job_key, job_group,
  parent, description, tags, args, result, progress, error_type, error, traceback, fingerprint, reason, bytes)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: put_words
INSERT INTO job_words (rowid, words, error_words) VALUES (?, ?, ?)

-- name: put_attempts
INSERT INTO attempts (ns, id, created, run, task, queue, started, ended, outcome, worker, version, waited, error_type, error, traceback,
  fingerprint)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (ns, id, created, run) DO UPDATE SET
  ended = excluded.ended, outcome = excluded.outcome, worker = COALESCE(excluded.worker, attempts.worker),
  version = COALESCE(excluded.version, attempts.version), error_type = excluded.error_type, error = excluded.error,
  traceback = excluded.traceback, fingerprint = excluded.fingerprint
WHERE attempts.ended IS NULL AND excluded.ended IS NOT NULL
RETURNING id, created, run, ended

-- name: put_events
INSERT INTO events (ns, id, run, kind, at, queue, number) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: put_rollups
INSERT INTO rollups (ns, unit, start, queue, task, succeeded, failed, other, took, waited)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (ns, unit, start, queue, task) DO UPDATE SET
  succeeded = excluded.succeeded, failed = excluded.failed, other = excluded.other, took = excluded.took,
  waited = excluded.waited

-- name: put_errors
INSERT INTO errors (ns, fingerprint, queue, task, type, message, count, first, last, last_job, versions)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (ns, fingerprint, queue) DO UPDATE SET
  message = excluded.message, count = excluded.count, first = excluded.first, last = excluded.last,
  last_job = excluded.last_job, versions = excluded.versions

-- name: put_error_hours
INSERT INTO error_hours (ns, fingerprint, queue, hour, count) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (ns, fingerprint, queue, hour) DO UPDATE SET count = error_hours.count + excluded.count

-- name: put_feeds
INSERT INTO feeds (ns, queue, number, at) VALUES (?, ?, ?, ?)
ON CONFLICT (ns, queue) DO UPDATE SET number = excluded.number, at = excluded.at

-- name: put_gaps
INSERT INTO gaps (ns, queue, after, until, at, reading) VALUES (?, ?, ?, ?, ?, '') ON CONFLICT DO NOTHING
