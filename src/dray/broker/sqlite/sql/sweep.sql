-- name: expired
SELECT expires, seq FROM jobs WHERE ns = ? AND expires <= ? ORDER BY expires, seq LIMIT ?

-- name: overdue
SELECT deadline_at, seq FROM jobs WHERE ns = ? AND deadline_at <= ? AND state IN (0, 1, 2, 4)
ORDER BY deadline_at, seq LIMIT ?

-- name: forgettable
SELECT pos, seq FROM jobs WHERE queue = ? AND state = ? AND lane = 0 AND pos <= ? ORDER BY pos, seq LIMIT ?

-- name: drop_results
DELETE FROM ends WHERE job IN (SELECT job FROM ends WHERE ns = ?1 AND expires <= ?2 ORDER BY expires LIMIT ?3)
  AND error IS NULL AND reason IS NULL

-- name: blank_results
UPDATE ends SET result = NULL, expires = NULL
WHERE job IN (SELECT job FROM ends WHERE ns = ?1 AND expires <= ?2 ORDER BY expires LIMIT ?3)

-- name: drop_docs
DELETE FROM docs WHERE rowid IN (SELECT rowid FROM docs WHERE ns = ?1 AND expires <= ?2 LIMIT ?3)

-- name: drop_keys
DELETE FROM keys WHERE (queue, key) IN (
  SELECT queue, key FROM keys WHERE until <= ?2 AND queue IN (SELECT id FROM queues WHERE ns = ?1) LIMIT ?3)

-- name: drop_rates
DELETE FROM rates WHERE (queue, scope, name) IN (
  SELECT queue, scope, name FROM rates
  WHERE tat <= ?2 * 1000 AND queue IN (SELECT id FROM queues WHERE ns = ?1) LIMIT ?3)

-- name: drop_mail
-- Mail that was not fetched for a day: its watcher is gone.
DELETE FROM mail WHERE seq IN (SELECT seq FROM mail WHERE ns = ?1 AND at <= ?2 - 86400000 LIMIT ?3)

-- name: idle_feeds
SELECT q.id FROM queues q WHERE q.ns = ?1 AND NOT EXISTS (SELECT 1 FROM jobs WHERE queue = q.id)
  AND (SELECT at FROM events WHERE queue = q.id ORDER BY number DESC LIMIT 1) <= ?2

-- name: forget_sleepers
DELETE FROM sleepers WHERE ns = ? AND until <= ? RETURNING id

-- name: forget_sleeper_queues
DELETE FROM sleeper_queues WHERE sleeper = ?

-- name: insert_sleeper
INSERT OR IGNORE INTO sleepers (id, ns, bell, until, session, watcher, filter) VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: insert_sleeper_queue
INSERT OR IGNORE INTO sleeper_queues (ns, queue, sleeper) VALUES (?, ?, ?)

-- name: delete_sleeper
DELETE FROM sleepers WHERE id = ?

-- name: any_sleeper
SELECT EXISTS (SELECT 1 FROM sleepers)

-- name: sleepers_of_queue
SELECT s.id, s.bell, s.until, s.filter FROM sleeper_queues q JOIN sleepers s ON s.id = q.sleeper
WHERE q.ns = ? AND q.queue = (SELECT name FROM queues WHERE id = ?) ORDER BY s.id

-- name: sleepers_of_session
SELECT id, bell FROM sleepers WHERE ns = ? AND session = ?

-- name: sleepers_of_watcher
SELECT id, bell FROM sleepers WHERE ns = ? AND watcher = ?

-- name: any_mail
SELECT 1 FROM mail WHERE ns = ? AND watcher = ? LIMIT 1

-- name: fetch_mail
DELETE FROM mail WHERE ns = ? AND watcher = ? RETURNING seq, id

-- name: first_blocked
SELECT min(blocked) FROM lanes WHERE queue = ? AND blocked > 0
