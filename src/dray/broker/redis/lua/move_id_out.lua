-- evict: a job makes way for one of the same id in another queue; who waits for the id goes with it.
-- uses: base job line moves
--
-- ARGV[3] id  [4] 1 to remove a job that has not started
-- returns {dependants, watchers, aftermath}: what `adopt` is to be given
local id = ARGV[3]
local job = load(id)
if job and ARGV[4] == '1' and job.r == 0 and not_started[job.s] then
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
