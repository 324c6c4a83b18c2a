-- forget_queue_name: takes an unused queue off the list of queues. Until that is done it is in `leaving`, so that no
-- sweep overlooks a job that is put there meanwhile.
-- uses: namespace
--
-- `queues`  SET of all queues; `leaving` SET of those that are being forgotten
-- `fed`     the highest feed number of any forgotten queue. A queue that is created again numbers its entries from
--           there, so that an old cursor of a reader never fits by chance
--
-- ARGV[2] begin | unlist  [3] queue  [4] begin: the newest feed number of the queue
-- returns 1
if ARGV[2] == 'begin' then
  call('SADD', N .. 'leaving', ARGV[3])
  if tonumber(ARGV[4]) > tonumber(call('GET', N .. 'fed') or 0) then call('SET', N .. 'fed', ARGV[4]) end
elseif call('SISMEMBER', N .. 'leaving', ARGV[3]) == 1 then
  call('SREM', N .. 'queues', ARGV[3])
end
return 1
