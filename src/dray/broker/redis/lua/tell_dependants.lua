-- orphan: jobs that were not accepted; whoever waits for them must not wait for ever.
-- uses: base job line moves
--
-- ARGV[3..] ids
-- returns {0, aftermath}
hint = '~'
for i = 3, #ARGV do
  if call('HEXISTS', Q .. 'job', ARGV[i]) == 0 then tell_dependants(ARGV[i], 'not_found') end
end
return { 0, aftermath() }
