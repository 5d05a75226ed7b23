-- fleet_join: now, consumer, ttl_ms. Answers the time and the members.
keep_time()
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[3]), ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
return { exactly(told), redis.call('ZRANGE', KEYS[1], 0, -1) }
