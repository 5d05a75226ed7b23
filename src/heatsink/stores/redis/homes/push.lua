-- push: maximum size of a home, seconds to keep it, number of members, members…, homes…
-- Adds all members to each home; KEYS[1] is the prefix of their keys. Only a read renews a home's
-- time to live, so the time to live shows when the home was last read.
local most, keep_s, count = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local words = {}
for i = 4, 3 + count do
  words[#words + 1] = 0
  words[#words + 1] = ARGV[i]
end
for i = 4 + count, #ARGV do
  local home = KEYS[1] .. ARGV[i]
  redis.call('ZADD', home, unpack(words))
  redis.call('ZREMRANGEBYRANK', home, 0, -(most + 2))
  if redis.call('TTL', home) < 0 then redis.call('EXPIRE', home, keep_s) end
end
return {}
