-- place_use: now. KEYS: the limit's hash, twice.
-- Returns for each key in use: its name, the places that are taken, the places that holders want.
redis.call('ZREMRANGEBYSCORE', LISTED, '-inf', now)
local found = {}
for _, handle in ipairs(redis.call('ZRANGE', LISTED, 0, -1)) do
  local key, taken, want = find_key(handle), 0, 0
  for _, holder in pairs(key.holders) do
    if holder.until_ms > now then taken, want = taken + held(holder), want + holder.want end
  end
  if taken + want > 0 then
    found[#found + 1], found[#found + 2], found[#found + 3] = key.name, taken, want
  end
end
return found
