-- finished: now, rank of the first, limit. Returns the ids of parts that have ended and are kept.
local ids = {}
local last = ARGV[2] + ARGV[3] - 1
local handles = redis.call('ZRANGE', KEPT, ARGV[2], last)
for _, handle in ipairs(handles) do
  local p = find_part(handle)
  ids[#ids + 1] = p and p.info[ID] or ''
end
return ids
