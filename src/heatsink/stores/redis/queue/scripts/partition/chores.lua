-- chores: now, keep_ms, then handle and packed end of each part whose end the batch has counted.
-- Removes those ends. Returns {ends to count, parts staged over a minute ago and never released}.
begin()
local ENDS_MAX = 1000

local function same(one, other)
  for i = 1, 6 do
    if one[i] ~= other[i] then return false end
  end
  return true
end

local function keep_ms_of(p)
  return (p.info[KEEP_MS] or 0) > 0 and p.info[KEEP_MS] or tonumber(ARGV[2])
end

for i = 3, #ARGV, 2 do
  local handle, known = ARGV[i], redis.call('HGET', ENDS, ARGV[i])
  if known and same(cmsgpack.unpack(known), cmsgpack.unpack(ARGV[i + 1])) then
    redis.call('HDEL', ENDS, handle)
    redis.call('ZREM', OUTBOX, handle)
    local p = find_part(handle)
    if p and p.state == 'finished' then let_expire(p, keep_ms_of(p)) end
  end
end
redis.call('ZREMRANGEBYSCORE', TIMES, '-inf', meta.virtual)
redis.call('ZREMRANGEBYSCORE', KEPT, '-inf', exactly(now))
local ends = redis.call('ZRANGE', OUTBOX, 0, ENDS_MAX - 1)
if #ends > 0 then ends = redis.call('HMGET', ENDS, unpack(ends)) end
local before = '(' .. exactly(now - STALE_MS)
local stale = {}
for _, handle in ipairs(redis.call('ZRANGEBYSCORE', STAGED, '-inf', before, 'LIMIT', 0, ENDS_MAX)) do
  local p = find_part(handle)
  if p then stale[#stale + 1] = { p.info[ID], p.info[BATCH], p.stamp }
  else redis.call('ZREM', STAGED, handle) end
end
return { ends, stale }
