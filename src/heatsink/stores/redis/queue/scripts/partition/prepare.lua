-- prepare: now, version. Makes this place ready to get the partition with the move `version`.
-- Deletes what a place that gave the partition away has kept. Returns the newest move that this place
-- was prepared for, or -1 if it holds parts of the partition.
local version = tonumber(ARGV[2])
if (meta.prepared or -1) >= version then return meta.prepared end
local parts = redis.call('ZCARD', STAGED) + redis.call('ZCARD', LIVE) + redis.call('ZCARD', OUTBOX)
local kept = redis.call('ZRANGE', KEPT, 0, -1)
local is_holder = (meta.held or 0) > math.max(meta.moved or -1, meta.prepared or -1)
if parts > 0 or (is_holder and #kept > 0) then return -1 end
for _, handle in ipairs(kept) do
  for _, suffix in ipairs(PART_KEYS) do redis.call('UNLINK', root .. 'part/' .. handle .. suffix) end
end
redis.call('UNLINK', KEPT, TENANTS, TIMES, SLEEPING, SERVICE, RULES)
redis.call('HDEL', META, 'owner', 'until_ms', 'workers', 'virtual', 'ruled_by', 'ruled', 'rules',
  'sweep')
redis.call('HSET', META, 'prepared', version)
return version
