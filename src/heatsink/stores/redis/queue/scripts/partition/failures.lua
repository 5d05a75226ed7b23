-- failures: now, handle, place to start after ("": from the beginning), limit.
-- Returns {place, offset, tries, reason, body}…
local p = find_part(ARGV[2])
if not p then return {} end
local first = ARGV[3] == '' and '-' or '(' .. ARGV[3]
local places = redis.call('ZRANGEBYLEX', p.key .. '/failures', first, '+', 'LIMIT', 0, ARGV[4])
local found = {}
for _, place in ipairs(places) do
  local tries, reason = unpack(cmsgpack.unpack(redis.call('HGET', p.key .. '/reasons', place)))
  found[#found + 1] = { place, tonumber(string.sub(place, 10)), tries, reason,
    redis.call('HGET', chunks_of(p), 'b' .. tonumber(string.sub(place, 1, 8))) }
end
return found
