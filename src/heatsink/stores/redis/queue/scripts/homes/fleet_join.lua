-- fleet_join: now, consumer, ttl_ms. Makes the consumer a member for ttl_ms.
-- KEYS: members, time, offers. Returns the time and the members.
keep_time()
for _, place in ipairs({ 1, 3 }) do move_along(KEYS[place], still_due()) end
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[3]), ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
return { exactly(told), redis.call('ZRANGE', KEYS[1], 0, -1) }
