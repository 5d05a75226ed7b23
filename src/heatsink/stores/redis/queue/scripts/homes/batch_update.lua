-- batch_update: old version and tag, new version and tag, record, keep_ms (0: for ever).
-- Returns 1, or 0 if the stored record is not the old one.
local version, tag = find_record()
if version ~= ARGV[1] or tag ~= ARGV[2] then return 0 end
local text = text_of(ARGV[3], ARGV[4], ARGV[5])
if ARGV[6] == '0' then redis.call('SET', KEYS[1], text)
else redis.call('SET', KEYS[1], text, 'PX', ARGV[6]) end
return 1
