-- results: now, handle, bytes after which to stop, 1 to add the items, then number and count of
-- items of each chunk. Returns {number, {offset, lap, value…}, chunk or ""}…
local p = find_part(ARGV[2])
if not p then return {} end
local bytes_max, with_items = tonumber(ARGV[3]), ARGV[4] == '1'
local found, size = {}, 0
for i = 5, #ARGV, 2 do
  local number, places, kept = tonumber(ARGV[i]), {}, {}
  for offset = 0, ARGV[i + 1] - 1 do places[offset + 1] = place_of(number, offset) end
  for at, value in ipairs(redis.call('HMGET', p.key .. '/results', unpack(places))) do
    if value then
      local colon = string.find(value, ':', 1, true)
      kept[#kept + 1] = at - 1
      kept[#kept + 1] = tonumber(string.sub(value, 1, colon - 1))
      kept[#kept + 1] = string.sub(value, colon + 1)
      size = size + #value
    end
  end
  local body = with_items and #kept > 0 and redis.call('HGET', chunks_of(p), 'b' .. number)
  found[#found + 1] = { number, kept, body or '' }
  size = size + #(body or '')
  if size >= bytes_max then break end
end
return found
