-- The layout of the embedded broker. Names follow the reference (dray.broker.memory.store).
-- Times are milliseconds since the epoch. Small values that a broker never looks into are msgpack.

CREATE TABLE namespaces (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  -- The newest version of any document: it only grows.
  counter INTEGER NOT NULL DEFAULT 0,
  -- The newest epoch of a session: it only grows.
  opened INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE queues (
  id INTEGER PRIMARY KEY,
  ns INTEGER NOT NULL,
  name TEXT NOT NULL,
  -- The newest number in line or turn of a lane: it only grows.
  counter INTEGER NOT NULL DEFAULT 0,
  -- The newest entry of the feed.
  entries INTEGER NOT NULL DEFAULT 0,
  paused BLOB,
  limits BLOB,
  UNIQUE (ns, name)
);

CREATE TABLE task_settings (
  queue INTEGER NOT NULL,
  task TEXT NOT NULL,
  paused BLOB,
  limits BLOB,
  PRIMARY KEY (queue, task)
) WITHOUT ROWID;

-- One row per job, kept small because it is rewritten with every move; its bytes are in `bodies`.
CREATE TABLE jobs (
  seq INTEGER PRIMARY KEY,
  ns INTEGER NOT NULL,
  id TEXT NOT NULL,
  queue INTEGER NOT NULL,
  -- 0 waiting, 1 scheduled, 2 ready, 3 running, 4 retrying, 5 succeeded, 6 dead, 7 cancelled
  state INTEGER NOT NULL,
  lane INTEGER NOT NULL DEFAULT 0,
  -- ready: number in line; scheduled and retrying: when it is due; running: since when; finished: when it
  -- may be forgotten
  pos INTEGER NOT NULL,
  run INTEGER NOT NULL DEFAULT 0,
  settled INTEGER NOT NULL DEFAULT 0,
  failures INTEGER NOT NULL DEFAULT 0,
  crashes INTEGER NOT NULL DEFAULT 0,
  suspect INTEGER NOT NULL DEFAULT 0,
  -- how many valid runs; 2 only while it is run speculatively
  runs INTEGER NOT NULL DEFAULT 0,
  offered INTEGER NOT NULL DEFAULT 0,
  line INTEGER NOT NULL DEFAULT 0,
  created INTEGER NOT NULL,
  started INTEGER,
  finished INTEGER,
  expires INTEGER,
  cancel TEXT,
  -- what moves need to know of the envelope, so that they work on envelopes of any version
  task TEXT NOT NULL,
  priority INTEGER NOT NULL,
  version INTEGER NOT NULL,
  grp TEXT,
  rate TEXT,
  rate_key TEXT,
  max_running INTEGER,
  running_key TEXT,
  key TEXT,
  key_ttl INTEGER,
  once INTEGER,
  ttl INTEGER,
  due INTEGER,
  orphan TEXT,
  result_ttl INTEGER,
  max_crashes INTEGER NOT NULL DEFAULT 3,
  speculate INTEGER NOT NULL DEFAULT 0,
  -- a small result of a plain success, which costs no page of its own here; any other is in `ends`
  result BLOB
);

CREATE UNIQUE INDEX jobs_id ON jobs (ns, id);
-- The one index that makes a state a place: take, promotion, pruning, listing and counting all read it.
CREATE INDEX jobs_place ON jobs (queue, state, lane, pos);
CREATE INDEX jobs_expires ON jobs (ns, expires) WHERE expires IS NOT NULL;

CREATE TABLE bodies (
  job INTEGER PRIMARY KEY,
  envelope BLOB NOT NULL
);

-- What a job came to. `expires` is when the result may go, which may be before the job is forgotten.
CREATE TABLE ends (
  job INTEGER PRIMARY KEY,
  result BLOB,
  error BLOB,
  reason TEXT,
  ns INTEGER NOT NULL,
  expires INTEGER
);

CREATE INDEX ends_expires ON ends (ns, expires) WHERE expires IS NOT NULL;

CREATE TABLE classes (
  id INTEGER PRIMARY KEY,
  queue INTEGER NOT NULL,
  priority INTEGER NOT NULL,
  task TEXT NOT NULL,
  version INTEGER NOT NULL,
  rate TEXT,
  max_running INTEGER,
  UNIQUE (queue, priority, task, version)
);

-- The groups of a class take turns. Empty text stands for no group or key (they cannot be empty).
CREATE TABLE groups (
  id INTEGER PRIMARY KEY,
  class INTEGER NOT NULL,
  name TEXT NOT NULL,
  turn INTEGER NOT NULL,
  -- how many of its lanes no limit holds back
  free INTEGER NOT NULL DEFAULT 0,
  UNIQUE (class, name)
);

CREATE INDEX groups_ring ON groups (class, turn) WHERE free > 0;

CREATE TABLE lanes (
  id INTEGER PRIMARY KEY,
  grp INTEGER NOT NULL,
  queue INTEGER NOT NULL,
  group_name TEXT NOT NULL,
  rate_key TEXT NOT NULL,
  running_key TEXT NOT NULL,
  rate TEXT,
  max_running INTEGER,
  -- the number in line of its first job
  head INTEGER NOT NULL,
  -- 0: free; else a limit of its group or key holds it back until then at the earliest
  blocked INTEGER NOT NULL DEFAULT 0,
  UNIQUE (grp, rate_key, running_key)
);

CREATE INDEX lanes_free ON lanes (grp, head) WHERE blocked = 0;
CREATE INDEX lanes_blocked ON lanes (queue, blocked) WHERE blocked > 0;
CREATE INDEX lanes_blocked_key ON lanes (queue, running_key) WHERE blocked > 0;
CREATE INDEX lanes_blocked_group ON lanes (queue, group_name) WHERE blocked > 0;

-- The GCRA time up to which a rate is used; a row whose time is past says nothing and may go.
CREATE TABLE rates (
  queue INTEGER NOT NULL,
  scope TEXT NOT NULL,
  name TEXT NOT NULL,
  tat INTEGER NOT NULL,
  PRIMARY KEY (queue, scope, name)
) WITHOUT ROWID;

CREATE TABLE sessions (
  id INTEGER PRIMARY KEY,
  ns INTEGER NOT NULL,
  name TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  lease INTEGER NOT NULL,
  expires INTEGER NOT NULL,
  request INTEGER NOT NULL DEFAULT 0,
  reply BLOB,
  UNIQUE (ns, name)
);

-- Valid runs, clustered by who holds them: fencing is one look-up, and there are never more rows than slots.
CREATE TABLE runs (
  session INTEGER NOT NULL,
  job INTEGER NOT NULL,
  run INTEGER NOT NULL,
  queue INTEGER NOT NULL,
  since INTEGER NOT NULL,
  task TEXT NOT NULL,
  grp TEXT,
  running_key TEXT,
  progress BLOB,
  -- a beat was told that it should stop
  heard INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (session, job, run)
) WITHOUT ROWID;

-- Runs that lost their validity while their session lives.
CREATE TABLE voids (
  session INTEGER NOT NULL,
  id TEXT NOT NULL,
  run INTEGER NOT NULL,
  heard INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (session, id, run)
) WITHOUT ROWID;

CREATE TABLE offers (
  seq INTEGER PRIMARY KEY,
  queue INTEGER NOT NULL,
  job INTEGER NOT NULL UNIQUE
);

CREATE TABLE keys (
  queue INTEGER NOT NULL,
  key TEXT NOT NULL,
  job INTEGER NOT NULL,
  until INTEGER,
  PRIMARY KEY (queue, key)
) WITHOUT ROWID;

CREATE INDEX keys_until ON keys (until) WHERE until IS NOT NULL;

CREATE TABLE dependencies (
  ns INTEGER NOT NULL,
  dependency TEXT NOT NULL,
  job INTEGER NOT NULL,
  PRIMARY KEY (ns, dependency, job)
) WITHOUT ROWID;

CREATE INDEX dependencies_job ON dependencies (job);

-- Word for a waiting job, written in the step that ended its dependency, delivered in a step of its own.
CREATE TABLE outbox (
  seq INTEGER PRIMARY KEY,
  ns INTEGER NOT NULL,
  job INTEGER NOT NULL,
  dependency TEXT NOT NULL,
  state INTEGER NOT NULL
);

CREATE TABLE docs (
  ns INTEGER NOT NULL,
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  version INTEGER NOT NULL,
  expires INTEGER,
  value BLOB NOT NULL,
  PRIMARY KEY (ns, kind, name)
);

CREATE INDEX docs_expires ON docs (expires) WHERE expires IS NOT NULL;

CREATE TABLE events (
  queue INTEGER NOT NULL,
  number INTEGER NOT NULL,
  at INTEGER NOT NULL,
  body BLOB NOT NULL,
  PRIMARY KEY (queue, number)
) WITHOUT ROWID;

CREATE TABLE watchers (
  job INTEGER NOT NULL,
  watcher TEXT NOT NULL,
  PRIMARY KEY (job, watcher)
) WITHOUT ROWID;

CREATE TABLE mail (
  seq INTEGER PRIMARY KEY,
  ns INTEGER NOT NULL,
  watcher TEXT NOT NULL,
  id TEXT NOT NULL,
  at INTEGER NOT NULL
);

CREATE INDEX mail_watcher ON mail (ns, watcher);

-- Who sleeps, and what would be news to them. Whoever brings news removes the row and rings the bell.
CREATE TABLE sleepers (
  id INTEGER PRIMARY KEY,
  ns INTEGER NOT NULL,
  bell TEXT NOT NULL,
  until INTEGER NOT NULL,
  session TEXT,
  watcher TEXT,
  filter BLOB
);

CREATE TABLE sleeper_queues (
  queue TEXT NOT NULL,
  ns INTEGER NOT NULL,
  sleeper INTEGER NOT NULL,
  PRIMARY KEY (ns, queue, sleeper)
) WITHOUT ROWID;
