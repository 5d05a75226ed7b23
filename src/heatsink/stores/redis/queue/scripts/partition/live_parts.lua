-- live_parts: now, handle to start after ("": from the beginning), limit. Returns {id, batch}…
local first = ARGV[2] == '' and '-' or '(' .. ARGV[2]
local found = {}
for _, handle in ipairs(redis.call('ZRANGEBYLEX', LIVE, first, '+', 'LIMIT', 0, ARGV[3])) do
  local p = find_part(handle)
  if p then
    found[#found + 1] = { p.info[ID], p.info[BATCH] }
    if p.carrier then -- it may have ended: keep the copy of the record that this part needs
      local key = root .. 'part/' .. p.carrier .. '/record'
      local left_ms = redis.call('PTTL', key)
      if left_ms > 0 and left_ms < RECORD_MS then redis.call('PEXPIRE', key, RECORD_MS) end
    end
  else
    redis.call('ZREM', LIVE, handle)
  end
end
return found
