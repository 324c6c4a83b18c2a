-- unique_keys: which job has a key.
-- uses: job
--
-- `key`      HASH key -> "id\nuntil" (until '' means: until its job ends); `keyttl` ZSET key -> until
local function key_holder(key)
  local stored = call('HGET', Q .. 'key', key)
  if not stored then return nil end
  local id, ends = string.match(stored, '^(.*)\n(%d*)$')
  return id, tonumber(ends)
end

local function take_key(key, id, ends)
  call('HSET', Q .. 'key', key, id .. '\n' .. (ends and string.format('%.0f', ends) or ''))
  if ends then call('ZADD', Q .. 'keyttl', ends, key) else call('ZREM', Q .. 'keyttl', key) end
end

local function claim_key(job)
  local key, ttl = job.options.key, job.options.key_ttl
  if key then take_key(key, job.id, ttl and now + ttl) end
end

local function other_key_holder(job)
  if not job.options.key then return nil end
  local id, ends = key_holder(job.options.key)
  if id and id ~= job.id and (not ends or now < ends) then return id end
end

-- `once` takes the key (again, if its key_ttl is over) unless another job has it by now.
local function free_key(job)
  local key, once = job.options.key, job.options.once
  if not key or other_key_holder(job) then return end
  if job.state == 'succeeded' and once then return take_key(key, job.id, now + once) end
  if key_holder(key) == job.id then
    call('HDEL', Q .. 'key', key)
    call('ZREM', Q .. 'keyttl', key)
  end
end
