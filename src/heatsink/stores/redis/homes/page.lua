-- page: upper bound (member), limit, seconds to keep the home. Returns the members below the bound
-- in the home KEYS[1], newest first, or false if the home is incomplete.
if not redis.call('ZSCORE', KEYS[1], '\255') then return false end
redis.call('EXPIRE', KEYS[1], ARGV[3])
return redis.call('ZRANGE', KEYS[1], ARGV[1], '-', 'BYLEX', 'REV', 'LIMIT', 0, ARGV[2])
