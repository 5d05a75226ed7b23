-- A batch's record is a string: its version, a space, its tag, a space, and the packed record.
-- Returns version, tag and record of the batch at KEYS[1]; nil without a record.
local function find_record()
  local text = redis.call('GET', KEYS[1])
  if not text then return nil end
  local version, tag, at = string.match(text, '^(%d+) (%S*) ()')
  return version, tag, string.sub(text, at)
end

local function text_of(version, tag, record) return version .. ' ' .. tag .. ' ' .. record end
