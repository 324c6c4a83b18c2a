-- name: durable_row
-- In the order in which `DurableRow` unpacks them.
SELECT memos, size, undoable, undone, undo, replayed, orphaned_by, suspended, open, wake FROM durables WHERE job = ?

-- name: save_durable
INSERT INTO durables (job, queue, memos, size, undoable, undone, undo, replayed, orphaned_by, suspended, open, wake)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (job) DO UPDATE SET memos = excluded.memos, size = excluded.size, undoable = excluded.undoable,
  undone = excluded.undone, undo = excluded.undo, replayed = excluded.replayed,
  orphaned_by = excluded.orphaned_by, suspended = excluded.suspended, open = excluded.open, wake = excluded.wake

-- name: mark_durable
UPDATE jobs SET durable = 1 WHERE seq = ?

-- name: end_suspension
UPDATE durables SET suspended = NULL, open = 0, wake = NULL WHERE job = ? AND suspended IS NOT NULL

-- name: holds_run
SELECT 1 FROM runs WHERE session = ? AND job = ? AND run = ?

-- name: insert_memo
INSERT INTO memos (job, position, entry) VALUES (?, ?, ?)

-- name: read_memos
SELECT entry FROM memos WHERE job = (SELECT seq FROM jobs WHERE ns = ? AND id = ?) AND position >= ?
ORDER BY position LIMIT ?

-- name: memos_from
SELECT entry FROM memos WHERE job = ? AND position >= ? ORDER BY position

-- name: delete_memos
DELETE FROM memos WHERE job = ?

-- name: insert_child
INSERT OR IGNORE INTO children (job, id) VALUES (?, ?)

-- name: take_children
DELETE FROM children WHERE job = ? RETURNING seq, id

-- name: mailbox
-- The newest number, how many messages are held, and whether one of this id is known.
SELECT coalesce(max(number), 0), count(body), coalesce(max(id = ?3), 0) FROM messages WHERE job = ?1 AND name = ?2

-- name: newest_message
SELECT max(number) FROM messages WHERE job = ? AND name = ?

-- name: insert_message
INSERT INTO messages (job, name, number, id, body) VALUES (?, ?, ?, ?, ?)

-- name: trim_messages
DELETE FROM messages WHERE job = ? AND name = ? AND number <= ?

-- name: drop_messages
UPDATE messages SET body = NULL WHERE job = ? AND name = ? AND number <= ?

-- name: read_messages
SELECT number, id, body FROM messages WHERE job = (SELECT seq FROM jobs WHERE ns = ? AND id = ?) AND name = ?
  AND number > ? AND body IS NOT NULL ORDER BY number LIMIT ?

-- name: delete_messages
DELETE FROM messages WHERE job = ?

-- name: delete_durable
DELETE FROM durables WHERE job = ?

-- name: due_wakes
SELECT job, wake FROM durables WHERE queue = ? AND wake <= ? ORDER BY wake, job LIMIT ?

-- name: tally
SELECT state, count(*) FROM jobs INDEXED BY jobs_nodes
WHERE node IS NOT NULL AND owner = ? AND queue = (SELECT id FROM queues WHERE ns = ? AND name = ?) GROUP BY state

-- name: postpone
UPDATE jobs SET pos = ? WHERE seq = ?
