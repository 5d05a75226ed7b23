-- place_declare: now_ms (the caller's), process, ttl_ms, keep_ms, then {field, value} pairs.
-- KEYS: the hash of announced limits. A value that another process announced in another way stays
-- until its time is over; fields of actions (`a…`) are always replaced.
-- Returns all fields and values { value, until_ms } that were announced at most keep_ms ago.
local at, process, ttl_ms, keep_ms = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
for place = 5, #ARGV, 2 do
  local field, value, is_mine = ARGV[place], ARGV[place + 1], true
  local stored = redis.call('HGET', KEYS[1], field)
  if stored and string.sub(field, 1, 1) == 'l' then
    local before, by, until_ms = unpack(cmsgpack.unpack(stored))
    is_mine = before == value or by == process or until_ms <= at
  end
  if is_mine then
    redis.call('HSET', KEYS[1], field, cmsgpack.pack({ value, process, at + ttl_ms }))
  end
end
local found, stored = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #stored, 2 do
  local value, _, until_ms = unpack(cmsgpack.unpack(stored[i + 1]))
  if until_ms > at - keep_ms then
    found[#found + 1], found[#found + 2] = stored[i], value
  end
end
return found
