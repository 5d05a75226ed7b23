-- record_of: now, handle. Returns the copy of the batch's record that the part carries, or shares
-- with another part.
local function carried_by(handle) return redis.call('GET', root .. 'part/' .. handle .. '/record') end

local carrier = redis.call('HGET', root .. 'part/' .. ARGV[2], 'carrier')
return carried_by(ARGV[2]) or carrier and carried_by(carrier)
