-- Runs that have ended, the newest of each job; a job whose only run succeeded has no row.
CREATE TABLE past (
  job INTEGER PRIMARY KEY,
  runs BLOB NOT NULL
);

-- The run is to be stopped at once.
ALTER TABLE runs ADD COLUMN forced INTEGER NOT NULL DEFAULT 0;
