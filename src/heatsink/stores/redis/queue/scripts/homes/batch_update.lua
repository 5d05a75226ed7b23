-- batch_update: the version to replace, the version that replaces it, record
if redis.call('HGET', KEYS[1], 'version') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'record', ARGV[3])
redis.call('PERSIST', KEYS[1])
return 1
