-- copy_in: now, version, handle, suffix of one of the part's keys, type, ttl in ms, cursor, words…
-- Stores a page of the key, unless the whole part is here. The part's own hash (suffix "") comes
-- last: with it the part is whole. Returns 0 if this place is not prepared for this move.
local TTL_MAX = 7 * 86400000
if meta.prepared ~= tonumber(ARGV[2]) then return 0 end
local handle, suffix, kind, ttl = ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
local key, part = root .. 'part/' .. handle .. suffix, root .. 'part/' .. handle
if redis.call('EXISTS', part) == 1 then return 1 end
local words = {}
for i = 8, #ARGV do words[#words + 1] = ARGV[i] end
if kind == 'hash' then
  call_many('HSET', key, words)
elseif kind == 'zset' then
  for i = 1, #words, 2 do redis.call('ZADD', key, words[i + 1], words[i]) end
elseif kind == 'list' then
  if ARGV[7] == '0' then redis.call('UNLINK', key) end
  call_many('RPUSH', key, words)
elseif kind == 'string' then
  redis.call('SET', key, words[1])
end
if ttl < 0 then ttl = TTL_MAX end
redis.call('PEXPIRE', key, ttl)
if suffix == '' then redis.call('ZADD', KEPT, exactly(now + ttl), handle) end
return 1
