-- tell_dependants: posts to the dependants of jobs that were not accepted that these do not exist, so that none waits
-- forever. Called by put.
-- uses: removal
--
-- ARGV[3..] ids
-- returns {0, aftermath}
hint = '~'
for i = 3, #ARGV do
  if call('HEXISTS', Q .. 'job', ARGV[i]) == 0 then tell_dependants(ARGV[i], 'not_found') end
end
return { 0, aftermath() }
