-- What the home KEYS[1] has of a batch: its version, its tag and its record; nothing without a record.
-- The record contains the version and the tag as well, in case somebody deletes these fields.
local function find_record()
  local version, tag, record = unpack(redis.call('HMGET', KEYS[1], 'version', 'tag', 'record'))
  if not record then return nil end
  if not (version and tag) then
    local kept = cmsgpack.unpack(record)
    version, tag = string.format('%.0f', kept.version), kept.tag
  end
  return version, tag, record
end
