-- place_free: now, limit, bell channel, the beginning of the names of holders. KEYS: the limit's hash,
-- twice. Ends the leases of these holders, and rings the bells of those that wait.
-- Returns how many places this frees.
local limit, channel, beginning, count = ARGV[2], ARGV[3], ARGV[4], 0
for _, handle in ipairs(redis.call('ZRANGEBYSCORE', LISTED, now, '+inf')) do
  local key = find_key(handle)
  for name, holder in pairs(key.holders) do
    if string.sub(name, 1, #beginning) == beginning then
      if holder.until_ms > now then
        holder.until_ms, count = now, count + held(holder)
        key.changed[holder] = true
      end
    elseif holder.want > 0 then
      redis.call('PUBLISH', channel, cmsgpack.pack({ holder.bell, limit, key.name }))
    end
  end
  if next(key.changed) then keep_key(key, 2 * home.lease_ms) end
end
keep_home()
return count
