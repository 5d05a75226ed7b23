-- batch_index: submitted_ms, id, maximum number of listed batches, seconds to keep the list
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -ARGV[3] - 1)
redis.call('EXPIRE', KEYS[1], ARGV[4])
return 1
