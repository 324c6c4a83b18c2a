-- session_end_done: removes the note of an ended session, once every queue has freed its runs.
-- uses: namespace
--
-- ARGV[2] session  [3] epoch
-- returns 1 if there was a note
call('HDEL', N .. 'ending', ARGV[3] .. '\n' .. ARGV[2])
return call('DEL', N .. 'eq:' .. ARGV[3])
