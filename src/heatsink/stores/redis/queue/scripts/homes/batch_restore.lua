-- batch_restore: version, tag, record. Stores the record unless this version or a newer one is
-- there. Returns the stored record.
local version, _, record = find_record()
if not record or tonumber(version) < tonumber(ARGV[1]) then
  redis.call('SET', KEYS[1], text_of(ARGV[1], ARGV[2], ARGV[3]))
  record = ARGV[3]
end
return record
