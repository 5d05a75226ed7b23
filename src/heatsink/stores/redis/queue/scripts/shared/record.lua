-- Returns version, tag and record of the batch at KEYS[1]; nil without a record.
-- The record also contains the version and the tag, in case those fields were deleted.
local function find_record()
  local version, tag, record = unpack(redis.call('HMGET', KEYS[1], 'version', 'tag', 'record'))
  if not record then return nil end
  if not (version and tag) then
    local kept = cmsgpack.unpack(record)
    version, tag = string.format('%.0f', kept.version), kept.tag
  end
  return version, tag, record
end
