-- limit_declare: now, count ("" removes the limit), period_s. Sets the declared rate.
if tonumber(ARGV[2]) ~= limit.count or tonumber(ARGV[3]) ~= limit.period_s then
  keep({ next_ms = math.max(math.min(next_ms, now + BOOKED_MS_MAX + LATE_MS), free_ms) })
end
if ARGV[2] == '' then
  redis.call('HDEL', KEYS[1], 'count', 'period_s')
  if not is_new then keep({}) end
else
  keep({ count = ARGV[2], period_s = ARGV[3] })
end
return 1
