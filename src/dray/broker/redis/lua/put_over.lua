-- put_over: hands a single new job over to a sleeper, without a place in line.
-- uses: job_text takers
-- as a function
--
-- put_over(1 if the queue is enlisted) returns the reply of put; nil, with nothing changed but a number in
-- line skipped, if that may not be.
local enlisted = ...
local id, body = ARGV[5], ARGV[6]
local header, class, options = string.match(body, '^(.[%d+]+ ([^ \n]+) ?([^\n]*))')
local said = options ~= '' and cjson.decode(options) or {}
if said.rate or said.max_running or (said.due or 0) > now then return end
local may_go_over, give_to_sleeper = takers()
if call('EXISTS', Q .. 'index', Q .. 'blocked') > 0 or not may_go_over(body) then return end
-- First a write that a full server refuses: what it accepts then is complete.
local line = call('HINCRBY', Q .. 'n', 'line', 1)
local session = give_to_sleeper(class, id, 1, '', line .. ' ' .. body)
if not session then return end
call('HSET', Q .. 'head', id, facts_of('running', 1, line, 0, at, ' session=' .. session) .. header)
call('HSET', Q .. 'job', id, line .. ' ' .. body)
add_to_feed('p0 ' .. id .. '\nt1 ' .. id, 2)
call('HINCRBY', Q .. 'running', 'q', 1)
call('HINCRBY', Q .. 'running', 't:' .. string.match(class, '|(.-)|'), 1)
if said.group then call('HINCRBY', Q .. 'running', 'g:' .. said.group, 1) end
if said.running_key then call('HINCRBY', Q .. 'running', 'k:' .. said.running_key, 1) end
return { enlisted, 1, { 0, {}, {} } }
