-- take_over: now, version, number of totals, then their names and values, then actions and their
-- measured times. Stores what the partition's old place has learned.
if meta.prepared ~= tonumber(ARGV[2]) or (meta.held or 0) > meta.prepared then return 0 end
local count = 2 * tonumber(ARGV[3])
redis.call('HSET', META, unpack(ARGV, 4, 3 + count))
if #ARGV > 3 + count then redis.call('HSET', SERVICE, unpack(ARGV, 4 + count)) end
return 1
