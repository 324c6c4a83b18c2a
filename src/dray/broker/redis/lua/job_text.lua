-- job_text: the stored texts of a job.
--
-- `job`  HASH id -> body: "<number in line> <header>\n<envelope>". Written once; the number is the one it got when it
--        was put ready, else 0.
-- header "<shape><stamp>[+<created>] <class>[ <options>]": arrival stamp (16 digits), creation time if it differs from
--        the stamp, class "priority|task|version", options as JSON. Shapes:
--          p plain   no options: scripts need to know nothing but the class
--          s simple  options are at most rate, max_running (of the task as a whole) and due
--          k keyed   also group, rate_key and running_key
--          f full    any options: key key_ttl once ttl deadline rate max_running max_crashes speculate orphan due
--                    result_ttl group rate_key running_key owner node
-- `head` HASH id -> facts, header, then one "name=value" per line. Facts: "<state> run=<newest run> line=<number in
--        line> failures=<n> started=<ms, 0 never>" and " due=<ms>" | " session=<name>" | " finished=<ms>". Names, their
--        values as JSON: class (its priority was edited), settled (newest settled run, if it is not the newest that
--        ended), crashes, suspect (size of its group), expires, deadline, cancel, reason, runs ([number, session,
--        since], if they are not just the newest), waits (jobs not done yet, see waits), offered; at last one "past" for
--        each past run: [number, session, since, ended, how, error]. Of durable jobs also: memos, size (entries and
--        bytes of its log), kids, box (1: it calls jobs, has mail), undoable (1: there is something to undo), undo
--        ([state, reason]: it is being undone), undone (1), replayed (newest run at its last replay), suspended (what
--        it waits for, JSON in a text), wake (when a waiting job is woken in any case). Of orphans: orphaned (by
--        which job), depends (what it waited for then). revived: numbers of the messages that revived it
--        A job that is ready for the first time has no head.
--
-- Ids: a generated id of this queue is stored as ":" and its 16 bytes in base64, see ids.py.
-- States: waiting scheduled ready running retrying succeeded dead cancelled.
local FACTS = '^(%a+) run=(%d+) line=(%d+) failures=(%d+) started=(%d+) ?(%a*)=?([^\n]*)\n([^\n]*)(.*)$'
local HEADER = '^(.)(%d+)%+?(%d*) ([^ ]+) ?(.*)$'

-- The number in line and the header of a body.
local function body_parts(body)
  return string.match(body, '^(%d+) ([^\n]*)\n')
end

-- True if nothing follows the header of a head but past runs.
local function only_past(rest)
  return rest == '' or string.find(rest, '^\npast=') ~= nil
end

local function facts_of(state, run, line, failures, started, last)
  return state .. ' run=' .. run .. ' line=' .. line .. ' failures=' .. failures
    .. ' started=' .. started .. last .. '\n'
end
