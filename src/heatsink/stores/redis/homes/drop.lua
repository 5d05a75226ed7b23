-- drop: author. Removes the author's posts and the mark of a complete home (it is rebuilt later).
redis.call('ZREM', KEYS[1], '\255')
for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  if string.sub(member, member:byte(1) + 2) == ARGV[1] then
    redis.call('ZREM', KEYS[1], member)
  end
end
return {}
