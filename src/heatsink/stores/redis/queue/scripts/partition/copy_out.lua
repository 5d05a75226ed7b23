-- copy_out: now, handle, suffix of one of the part's keys, cursor. Returns a page of the key:
-- {type, ttl in ms, next cursor or "0", words…}.
local PAGE = 500
local key, cursor = root .. 'part/' .. ARGV[2] .. ARGV[3], ARGV[4]
local kind = redis.call('TYPE', key).ok
local page = { kind, redis.call('PTTL', key), '0' }
local words = {}
if kind == 'hash' then
  local found = redis.call('HSCAN', key, cursor, 'COUNT', 40)
  page[3], words = found[1], found[2]
elseif kind == 'zset' or kind == 'list' then
  local last = cursor + PAGE - 1
  if kind == 'zset' then words = redis.call('ZRANGE', key, cursor, last, 'WITHSCORES')
  else words = redis.call('LRANGE', key, cursor, last) end
  if #words >= PAGE then page[3] = tostring(cursor + PAGE) end
elseif kind == 'string' then
  words = { redis.call('GET', key) }
end
for _, word in ipairs(words) do page[#page + 1] = word end
return page
