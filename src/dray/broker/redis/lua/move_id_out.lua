-- move_id_out: removes a job that is replaced by one of the same id in another queue, with its dependants and watchers.
-- uses: removal
--
-- ARGV[3] id  [4] 1: remove the job if it has not started
-- returns {dependants, watchers, aftermath}; move_id_in takes the first two
local id = ARGV[3]
local job = load(id)
if job and ARGV[4] == '1' and job.run == 0 and not job.options.node and not_started[job.state] then
  note('L', id)
  remove(job)
end
local dependants, watchers = {}, {}
if not load(id) then
  dependants, watchers = call('ZRANGE', Q .. 'd:' .. id, 0, -1), call('SMEMBERS', Q .. 'w:' .. id)
  call('DEL', Q .. 'd:' .. id, Q .. 'w:' .. id)
  call('SREM', Q .. 'ends', id)
end
return { dependants, watchers, aftermath() }
