-- The job that this one works for, and its name in the flow of that job.
ALTER TABLE jobs ADD COLUMN owner TEXT;
ALTER TABLE jobs ADD COLUMN node TEXT;
-- 1: it has a row in `durables`.
ALTER TABLE jobs ADD COLUMN durable INTEGER NOT NULL DEFAULT 0;

-- The nodes of a flow are counted from here.
CREATE INDEX jobs_nodes ON jobs (owner, queue, state) WHERE node IS NOT NULL;

-- What only jobs have that keep a log, sleep, were orphaned or were replayed.
CREATE TABLE durables (
  job INTEGER PRIMARY KEY,
  queue INTEGER NOT NULL,
  -- entries of the log, and their bytes
  memos INTEGER NOT NULL DEFAULT 0,
  size INTEGER NOT NULL DEFAULT 0,
  -- there is something to undo; it was undone before it ended
  undoable INTEGER NOT NULL DEFAULT 0,
  undone INTEGER NOT NULL DEFAULT 0,
  -- how it ends when it is undone
  undo BLOB,
  -- its newest run at its last replay by hand
  replayed INTEGER NOT NULL DEFAULT 0,
  orphaned_by TEXT,
  -- what it waits for while it is suspended; 1: not for jobs only, so that it may have no dependencies
  suspended BLOB,
  open INTEGER NOT NULL DEFAULT 0,
  -- when a waiting job is woken in any case
  wake INTEGER
);

CREATE INDEX durables_wake ON durables (queue, wake) WHERE wake IS NOT NULL;

CREATE TABLE memos (
  job INTEGER NOT NULL,
  position INTEGER NOT NULL,
  entry BLOB NOT NULL,
  PRIMARY KEY (job, position)
) WITHOUT ROWID;

-- A message that was dropped has no body; its id is remembered for a while.
CREATE TABLE messages (
  job INTEGER NOT NULL,
  name TEXT NOT NULL,
  number INTEGER NOT NULL,
  id TEXT NOT NULL,
  body BLOB,
  PRIMARY KEY (job, name, number)
) WITHOUT ROWID;

CREATE UNIQUE INDEX messages_id ON messages (job, name, id);

-- Jobs that a job calls, in the order in which they were called.
CREATE TABLE children (
  seq INTEGER PRIMARY KEY,
  job INTEGER NOT NULL,
  id TEXT NOT NULL,
  UNIQUE (job, id)
);

-- 0: a dependency ended; 1: the job that calls it ended; 2: a dependency is unfinished again. `target` is the id
-- of the job for the latter two.
ALTER TABLE outbox ADD COLUMN kind INTEGER NOT NULL DEFAULT 0;
ALTER TABLE outbox ADD COLUMN target TEXT;

-- In the order of registration. `job` is null for one that does not wait any more but is remembered, because the
-- dependency is a node and may be replayed.
ALTER TABLE dependencies RENAME TO old_dependencies;
DROP INDEX dependencies_job;
CREATE TABLE dependencies (
  seq INTEGER PRIMARY KEY,
  ns INTEGER NOT NULL,
  dependency TEXT NOT NULL,
  id TEXT NOT NULL,
  job INTEGER,
  UNIQUE (ns, dependency, id)
);
CREATE INDEX dependencies_job ON dependencies (job) WHERE job IS NOT NULL;
INSERT INTO dependencies (ns, dependency, id, job)
SELECT d.ns, d.dependency, j.id, d.job FROM old_dependencies d JOIN jobs j ON j.seq = d.job ORDER BY d.job, d.dependency;
DROP TABLE old_dependencies;
