-- close_place: now, version, new place. Gives the partition away, unless it has parts that have not
-- ended, or is the place that was prepared for this move. Returns {version of the newest move or -1,
-- parts, ends to report, items, 1 if prepared for this move, new place of the newest move}.
local version = tonumber(ARGV[2])
local parts = redis.call('ZCARD', STAGED) + redis.call('ZCARD', LIVE)
local ends, leases = redis.call('ZCARD', OUTBOX), redis.call('ZCARD', EXPIRY)
local is_same = meta.prepared == version
if not is_same and parts + ends + leases == 0 and (meta.moved or -1) < version then
  redis.call('HSET', META, 'moved', version, 'moved_to', ARGV[3])
  meta.moved, meta.moved_to = version, ARGV[3]
end
return { meta.moved or -1, parts, ends, meta.waiting + meta.in_flight, is_same and 1 or 0,
  meta.moved_to or '' }
