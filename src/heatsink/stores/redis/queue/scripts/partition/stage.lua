-- stage: now, handle, packed part, then number, count, body of each chunk. Stores chunks of a part
-- that is not released yet; a repeated chunk changes nothing. Returns load().
local DIGESTS = 2 ^ 48
begin()
local handle, packed = ARGV[2], ARGV[3]
local p = find_part(handle)
if not p then
  p = new_part(handle, packed)
  p.state = 'staged'
  local fields = { 'packed', packed, 'at', '', 'numbers', #NUMBERS }
  for _, name in ipairs(NUMBERS) do
    fields[#fields + 1] = name
    fields[#fields + 1] = 0
  end
  for _, suffix in ipairs(PART_KEYS) do redis.call('UNLINK', p.key .. suffix) end -- of a damaged part
  redis.call('HSET', p.key, unpack(fields))
end
if p.state == 'staged' then
  p.stamp = math.floor(now)
  redis.call('ZADD', STAGED, p.stamp, handle)
  local chunks = p.key .. '/chunks'
  for i = 4, #ARGV, 3 do
    local number, count, body = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2]
    if redis.call('HSETNX', chunks, 'b' .. number, body) == 1 then
      redis.call('HSET', chunks, 'c' .. number, count, 'l' .. number, count)
      p.fresh, p.staged = p.fresh + count, p.staged + 1
      local digest = tonumber(string.sub(redis.sha1hex(body), 1, 12), 16)
      p.digest = (p.digest + digest) % DIGESTS
    end
  end
end
save()
return load()
