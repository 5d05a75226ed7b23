-- gaps: now, handle, number of staged chunks. Returns where items are missing:
-- {chunk, offset, count}…; a count of -1 is the rest of the chunk.
local p = find_part(ARGV[2])
if not p then return {} end
local gaps = {}
for _, packed in ipairs(redis.call('LRANGE', p.key .. '/missing', 0, -1)) do
  gaps[#gaps + 1] = cmsgpack.unpack(packed)
end
for number = p.next_chunk, tonumber(ARGV[3]) - 1 do
  if redis.call('HEXISTS', chunks_of(p), 'b' .. number) == 0 then
    gaps[#gaps + 1] = { number, number == p.next_chunk and p.next_offset or 0, -1 }
  end
end
return gaps
