-- batch_restore: version, tag, record. Stores the record unless this version or a newer one is
-- there. Returns the stored record.
local version, _, record = find_record()
if not record or tonumber(version) < tonumber(ARGV[1]) then
  redis.call('HSET', KEYS[1], 'version', ARGV[1], 'tag', ARGV[2], 'record', ARGV[3])
  redis.call('PERSIST', KEYS[1])
  record = ARGV[3]
end
return record
