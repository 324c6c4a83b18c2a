-- session_ended: every queue has freed what a session held.
-- uses: namespace
--
-- ARGV[2] session  [3] epoch
call('HDEL', N .. 'ending', ARGV[3] .. '\n' .. ARGV[2])
return call('DEL', N .. 'eq:' .. ARGV[3])
