-- doc_sweep: deletes expired documents. Called by sweep.
-- uses: namespace
--
-- ARGV[2] limit
-- returns the number of deleted documents
local past = call('ZRANGEBYSCORE', N .. 'docttl', '-inf', now, 'LIMIT', 0, ARGV[2])
for _, text in ipairs(past) do
  local kind, name = string.match(text, '^(.-)\n(.*)$')
  call('HDEL', N .. 'doc:' .. kind, name)
  call('ZREM', N .. 'docttl', text)
end
return #past
