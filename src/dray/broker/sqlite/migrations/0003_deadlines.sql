-- The job's own deadline (a length of time), and the moment at which it ends.
ALTER TABLE jobs ADD COLUMN deadline INTEGER;
ALTER TABLE jobs ADD COLUMN deadline_at INTEGER;

-- Only jobs that a sweep may bury: running and finished ones are left alone.
CREATE INDEX jobs_deadline ON jobs (ns, deadline_at) WHERE deadline_at IS NOT NULL AND state IN (0, 1, 2, 4);
