-- batch_open: version, tag, record, keep_ms. Keeps it for so long unless one is there; answers the
-- one that is there then.
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'version', ARGV[1], 'tag', ARGV[2], 'record', ARGV[3])
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
return redis.call('HGET', KEYS[1], 'record')
