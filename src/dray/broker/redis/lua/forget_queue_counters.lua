-- forget_queue_counters: deletes the counters of an unused queue, if nothing else is left of it. Called by sweep.
-- uses: forget_queue_check
--
-- returns 1 if nothing is left of the queue
if not is_bare() then return 0 end
call('DEL', Q .. 'n')
return 1
