-- fleet_offer: now, ttl_ms, actions… Answers all that some worker offers now; asked with none, it only looks.
for place = 3, #ARGV do
  redis.call('ZADD', KEYS[1], 'GT', now + tonumber(ARGV[2]), ARGV[place])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
return redis.call('ZRANGE', KEYS[1], 0, -1)
