-- batch_update: old version and tag, new version and tag, record, keep_ms (0: for ever).
-- Returns 1, or 0 if the stored record is not the old one.
local version, tag = find_record()
if version ~= ARGV[1] or tag ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[3], 'tag', ARGV[4], 'record', ARGV[5])
if ARGV[6] == '0' then redis.call('PERSIST', KEYS[1]) else redis.call('PEXPIRE', KEYS[1], ARGV[6]) end
return 1
