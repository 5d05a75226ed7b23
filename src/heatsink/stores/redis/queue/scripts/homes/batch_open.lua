-- batch_open: version, tag, record, keep_ms. Keeps it for so long unless one is there; answers the
-- one that is there then.
local _, _, record = find_record()
if not record then
  redis.call('HSET', KEYS[1], 'version', ARGV[1], 'tag', ARGV[2], 'record', ARGV[3])
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
return record or ARGV[3]
