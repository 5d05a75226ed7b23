-- disown: now, consumer, mark. Gives the partition up if this consumer owns it. Unless the mark is
-- empty, also ends the leases of all attempts whose names begin with it.
begin()
local mark = ARGV[3]
for _, attempt in ipairs(mark == '' and {} or redis.call('ZRANGE', EXPIRY, 0, -1)) do
  if string.sub(attempt, 1, #mark) == mark then redis.call('ZADD', EXPIRY, 'LT', now, attempt) end
end
if meta.owner == ARGV[2] then
  meta.owner, meta.workers = '', 0
  save_numbers()
end
return 1
