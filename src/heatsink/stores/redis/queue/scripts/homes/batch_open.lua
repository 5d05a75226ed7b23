-- batch_open: version, tag, record, keep_ms. Stores the record for keep_ms unless there is one.
-- Returns the stored record.
local _, _, record = find_record()
if not record then
  redis.call('SET', KEYS[1], text_of(ARGV[1], ARGV[2], ARGV[3]), 'PX', ARGV[4])
end
return record or ARGV[3]
