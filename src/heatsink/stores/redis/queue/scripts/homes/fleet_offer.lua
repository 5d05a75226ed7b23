-- fleet_offer: now, age_ms, keep_ms, ttl_ms, actions… Offers the actions, if any, for ttl_ms.
-- KEYS: offers, time, members. Returns the actions whose offer ended at most age_ms ago or is open.
keep_time()
for _, place in ipairs({ 1, 3 }) do move_along(KEYS[place], still_due()) end
local age_ms, keep_ms, ttl_ms = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
for place = 5, #ARGV do
  redis.call('ZADD', KEYS[1], 'GT', now + ttl_ms, ARGV[place])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - keep_ms)
if #ARGV > 4 then -- nobody asks for built-in actions and notices that are over
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)) do
    if string.sub(name, 1, 9) == 'heatsink.' then redis.call('ZREM', KEYS[1], name) end
  end
end
return redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. exactly(now - age_ms), '+inf')
