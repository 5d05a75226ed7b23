-- limit_declare: now, count ("" for none), period_s
if ARGV[2] == '' then
  redis.call('HDEL', KEYS[1], 'count', 'period_s')
else
  keep({ count = ARGV[2], period_s = ARGV[3] })
end
return 1
