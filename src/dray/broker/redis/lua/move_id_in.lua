-- move_id_in: moves the dependants and watchers of an id into this queue, after move_id_out took them out of another.
-- uses: removal
--
-- ARGV[3] id  [4] number of dependants   ARGV[5..] dependants, watchers
-- returns {0, aftermath}
local id, dependants = ARGV[3], tonumber(ARGV[4])
for i = 5, #ARGV do
  if i < 5 + dependants then
    if not call('ZSCORE', Q .. 'd:' .. id, ARGV[i]) then
      call('ZADD', Q .. 'd:' .. id, call('HINCRBY', Q .. 'n', 'dep', 1), ARGV[i])
    end
  else
    call('SADD', Q .. 'w:' .. id, ARGV[i])
  end
end
if #ARGV > 4 then call('SADD', Q .. 'ends', id) end
local job = load(id)
if job and finished[job.state] then announce_end(id, job.state) end
return { 0, aftermath() }
