-- batch_open: version, tag, record, keep_ms. Stores the record for keep_ms unless there is one.
-- Returns the stored record.
local _, _, record = find_record()
if not record then
  redis.call('HSET', KEYS[1], 'version', ARGV[1], 'tag', ARGV[2], 'record', ARGV[3])
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
return record or ARGV[3]
