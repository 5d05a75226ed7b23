-- drop: author. Removes the author's posts from the home KEYS[1], and its mark of completeness, so
-- that the home is rebuilt at the next read.
redis.call('ZREM', KEYS[1], '\255')
for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  if string.sub(member, member:byte(1) + 2) == ARGV[1] then
    redis.call('ZREM', KEYS[1], member)
  end
end
return {}
