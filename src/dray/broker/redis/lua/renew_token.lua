-- renew_token: gives jobs that are still to be put a new token, because theirs is too old to be used (see put).
-- uses: namespace
--
-- ARGV[2] token  [3] the new one
-- returns 1; 0 if another client was quicker
local jobs = call('HGET', N .. 'intent', ARGV[2])
if not jobs then return 0 end
call('HSET', N .. 'intent', ARGV[3], jobs)
call('HDEL', N .. 'intent', ARGV[2])
return 1
