-- The history on SQLite. `seq` is the time of a job's newest change in ms, times 2^20, plus a number within that
-- millisecond: searches, cursors and retention go along it, and the index of words is ordered by it.
CREATE TABLE jobs (
  seq INTEGER PRIMARY KEY, ns TEXT NOT NULL, id TEXT NOT NULL, created INTEGER NOT NULL, task TEXT NOT NULL,
  queue TEXT NOT NULL, state TEXT NOT NULL, priority INTEGER NOT NULL, attempt INTEGER NOT NULL,
  runs INTEGER NOT NULL, due INTEGER, started INTEGER, finished INTEGER, worker TEXT, job_key TEXT,
  job_group TEXT, parent TEXT, description TEXT NOT NULL, tags TEXT NOT NULL, args TEXT, result TEXT,
  progress TEXT, error_type TEXT, error TEXT, traceback TEXT, fingerprint TEXT, reason TEXT,
  bytes INTEGER NOT NULL
);
CREATE UNIQUE INDEX jobs_by_id ON jobs (ns, id, created);
CREATE INDEX jobs_by_task ON jobs (ns, task, seq);
CREATE INDEX jobs_by_queue ON jobs (ns, queue, seq);
CREATE INDEX jobs_by_state ON jobs (ns, state, seq);
CREATE INDEX jobs_by_error ON jobs (ns, fingerprint, seq) WHERE fingerprint IS NOT NULL;

CREATE TABLE attempts (
  ns TEXT NOT NULL, id TEXT NOT NULL, created INTEGER NOT NULL, run INTEGER NOT NULL, task TEXT NOT NULL,
  queue TEXT NOT NULL, started INTEGER NOT NULL, ended INTEGER, outcome TEXT NOT NULL, worker TEXT,
  version TEXT, waited INTEGER, error_type TEXT, error TEXT, traceback TEXT, fingerprint TEXT,
  PRIMARY KEY (ns, id, created, run)
) WITHOUT ROWID;
CREATE INDEX attempts_by_time ON attempts (ns, started);

CREATE TABLE events (
  ns TEXT NOT NULL, id TEXT NOT NULL, run INTEGER NOT NULL, kind TEXT NOT NULL, at INTEGER NOT NULL,
  queue TEXT NOT NULL, number INTEGER NOT NULL,
  PRIMARY KEY (ns, id, run, kind, at)
) WITHOUT ROWID;
CREATE INDEX events_by_time ON events (ns, at);

-- `unit` is the length of a row's time in ms: a minute, an hour or a day. `took` and `waited` are sketches of durations.
CREATE TABLE rollups (
  ns TEXT NOT NULL, unit INTEGER NOT NULL, start INTEGER NOT NULL, queue TEXT NOT NULL, task TEXT NOT NULL,
  succeeded INTEGER NOT NULL, failed INTEGER NOT NULL, other INTEGER NOT NULL, took BLOB NOT NULL,
  waited BLOB NOT NULL,
  PRIMARY KEY (ns, unit, start, queue, task)
) WITHOUT ROWID;

CREATE TABLE errors (
  ns TEXT NOT NULL, fingerprint TEXT NOT NULL, queue TEXT NOT NULL, task TEXT NOT NULL, type TEXT NOT NULL,
  message TEXT NOT NULL, count INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
  last_job TEXT NOT NULL, versions TEXT NOT NULL,
  PRIMARY KEY (ns, fingerprint, queue)
) WITHOUT ROWID;
CREATE INDEX errors_by_time ON errors (ns, last);

CREATE TABLE error_hours (
  ns TEXT NOT NULL, fingerprint TEXT NOT NULL, queue TEXT NOT NULL, hour INTEGER NOT NULL,
  count INTEGER NOT NULL,
  PRIMARY KEY (ns, fingerprint, queue, hour)
) WITHOUT ROWID;

-- How far each queue's feed was read, and what was missed. `reading` is the cursor of the repair by `find`.
CREATE TABLE feeds (
  ns TEXT NOT NULL, queue TEXT NOT NULL, number INTEGER NOT NULL, at INTEGER NOT NULL,
  PRIMARY KEY (ns, queue)
) WITHOUT ROWID;
CREATE TABLE gaps (
  ns TEXT NOT NULL, queue TEXT NOT NULL, after INTEGER NOT NULL, until INTEGER NOT NULL, at INTEGER NOT NULL,
  reading TEXT NOT NULL, mended INTEGER,
  PRIMARY KEY (ns, queue, after, until)
) WITHOUT ROWID;
