-- The history on PostgreSQL, in the schema `dray_history`: the tables of the layout on SQLite, and the words of a job in
-- its own row. `seq` is the time of a job's newest change in ms, times 2^20, plus a number within that millisecond.
CREATE TABLE jobs (
  seq BIGINT PRIMARY KEY, ns TEXT NOT NULL, id TEXT NOT NULL, created BIGINT NOT NULL, task TEXT NOT NULL,
  queue TEXT NOT NULL, state TEXT NOT NULL, priority BIGINT NOT NULL, attempt BIGINT NOT NULL,
  runs BIGINT NOT NULL, due BIGINT, started BIGINT, finished BIGINT, worker TEXT, job_key TEXT,
  job_group TEXT, parent TEXT, description TEXT NOT NULL, tags JSONB NOT NULL, args JSONB, result JSONB,
  progress JSONB, error_type TEXT, error TEXT, traceback TEXT, fingerprint TEXT, reason TEXT,
  bytes BIGINT NOT NULL, search TSVECTOR NOT NULL
);
CREATE UNIQUE INDEX jobs_by_id ON jobs (ns, id, created);
CREATE INDEX jobs_by_task ON jobs (ns, task, seq);
CREATE INDEX jobs_by_queue ON jobs (ns, queue, seq);
CREATE INDEX jobs_by_state ON jobs (ns, state, seq);
CREATE INDEX jobs_by_error ON jobs (ns, fingerprint, seq) WHERE fingerprint IS NOT NULL;

CREATE INDEX jobs_by_words ON jobs USING GIN (search);
CREATE INDEX jobs_by_time ON jobs (ns, seq);

CREATE TABLE attempts (
  ns TEXT NOT NULL, id TEXT NOT NULL, created BIGINT NOT NULL, run BIGINT NOT NULL, task TEXT NOT NULL,
  queue TEXT NOT NULL, started BIGINT NOT NULL, ended BIGINT, outcome TEXT NOT NULL, worker TEXT,
  version TEXT, waited BIGINT, error_type TEXT, error TEXT, traceback TEXT, fingerprint TEXT,
  PRIMARY KEY (ns, id, created, run)
);
CREATE INDEX attempts_by_time ON attempts (ns, started);

CREATE TABLE events (
  ns TEXT NOT NULL, id TEXT NOT NULL, run BIGINT NOT NULL, kind TEXT NOT NULL, at BIGINT NOT NULL,
  queue TEXT NOT NULL, number BIGINT NOT NULL,
  PRIMARY KEY (ns, id, run, kind, at)
);
CREATE INDEX events_by_time ON events (ns, at);

-- `unit` is the length of a row's time in ms: a minute, an hour or a day. `took` and `waited` are sketches of durations.
CREATE TABLE rollups (
  ns TEXT NOT NULL, unit BIGINT NOT NULL, start BIGINT NOT NULL, queue TEXT NOT NULL, task TEXT NOT NULL,
  succeeded BIGINT NOT NULL, failed BIGINT NOT NULL, other BIGINT NOT NULL, took BYTEA NOT NULL,
  waited BYTEA NOT NULL,
  PRIMARY KEY (ns, unit, start, queue, task)
);

CREATE TABLE errors (
  ns TEXT NOT NULL, fingerprint TEXT NOT NULL, queue TEXT NOT NULL, task TEXT NOT NULL, type TEXT NOT NULL,
  message TEXT NOT NULL, count BIGINT NOT NULL, first BIGINT NOT NULL, last BIGINT NOT NULL,
  last_job TEXT NOT NULL, versions TEXT NOT NULL,
  PRIMARY KEY (ns, fingerprint, queue)
);
CREATE INDEX errors_by_time ON errors (ns, last);

CREATE TABLE error_hours (
  ns TEXT NOT NULL, fingerprint TEXT NOT NULL, queue TEXT NOT NULL, hour BIGINT NOT NULL,
  count BIGINT NOT NULL,
  PRIMARY KEY (ns, fingerprint, queue, hour)
);

-- How far each queue's feed was read, and what was missed. `reading` is the cursor of the repair by `find`.
CREATE TABLE feeds (
  ns TEXT NOT NULL, queue TEXT NOT NULL, number BIGINT NOT NULL, at BIGINT NOT NULL,
  PRIMARY KEY (ns, queue)
);
CREATE TABLE gaps (
  ns TEXT NOT NULL, queue TEXT NOT NULL, after BIGINT NOT NULL, until BIGINT NOT NULL, at BIGINT NOT NULL,
  reading TEXT NOT NULL, mended BIGINT,
  PRIMARY KEY (ns, queue, after, until)
);
