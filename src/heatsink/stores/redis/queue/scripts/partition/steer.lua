-- steer: now, handle, verb, lap, since, channel, partition, record ("" if none), handle of the part
-- whose copy of the record this part shares ("" if none). Applies the verb to the part: release,
-- pause, resume, cancel, retry, limit or drop. An outdated one is ignored.
-- Returns 1, or 0 if there is no such part.
begin()
local verb, lap, since = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local p = find_part(ARGV[2])
if not p then return 0 end

local function drop()
  redis.call('ZREM', STAGED, p.handle)
  for _, suffix in ipairs(PART_KEYS) do redis.call('UNLINK', p.key .. suffix) end
  p.gone = true
end

-- Free the chunks of which no item was claimed: nearly all the memory of a large batch.
local function free_untouched()
  local chunks = chunks_of(p)
  local n = p.next_offset > 0 and p.next_chunk + 1 or p.next_chunk
  while redis.call('HDEL', chunks, 'b' .. n, 'c' .. n, 'l' .. n) > 0 do n = n + 1 end
end

local function cancel()
  if p.running + p.failed > 0 then free_untouched() end -- else all go when the part ends, below
  p.cancelled = p.cancelled + waiting(p)
  p.fresh, p.delayed, p.suspects = 0, 0, 0
  redis.call('UNLINK', p.key .. '/delayed', p.key .. '/suspects')
  p.state = 'cancelled'
end

-- Queue failed items again as if they had never run. Their scores are 0: due at once.
local function retry()
  p.lap, p.state = lap, 'ready'
  redis.call('ZREM', KEPT, p.handle)
  for _, suffix in ipairs(PART_KEYS) do redis.call('PERSIST', p.key .. suffix) end
  if p.failed == 0 then return end
  local failures, delayed = p.key .. '/failures', p.key .. '/delayed'
  if p.delayed == 0 then
    redis.call('RENAME', failures, delayed)
  else
    redis.call('ZUNIONSTORE', delayed, 2, delayed, failures)
    redis.call('UNLINK', failures)
  end
  redis.call('UNLINK', p.key .. '/reasons')
  p.delayed, p.failed = p.delayed + p.failed, 0
end

-- From now on the part waits for grants of its lane.
local function limit()
  leave(p)
  p.info[LIMITED] = true
  p.packed = cmsgpack.pack(p.info)
end

-- Keep the newest record of the batch: the batch's home can be restored from it.
if since >= p.recorded and ARGV[8] ~= '' then
  p.recorded = since
  redis.call('SET', p.key .. '/record', ARGV[8])
elseif since >= p.recorded and ARGV[9] ~= '' then
  p.recorded = since
  redis.call('HSET', p.key, 'carrier', ARGV[9])
  redis.call('UNLINK', p.key .. '/record')
end

local before = p.state
if before == 'staged' and (verb == 'release' or verb == 'pause' or verb == 'cancel') then
  p.lap = lap
end
local changed = true
local is_wish = verb ~= 'drop' and verb ~= 'release' and verb ~= 'limit'
local is_late = is_wish and since < p.since
if is_wish and not is_late then p.since = since end
if verb == 'drop' then
  if before == 'staged' and (since == 0 or since == p.stamp) then drop() end
  changed = false
elseif is_late then
  changed = false
elseif verb == 'release' and before == 'staged' then
  p.state = 'ready'
elseif verb == 'pause' and (before == 'ready' or before == 'staged') then
  p.state = 'paused'
elseif verb == 'resume' and before == 'paused' then
  p.state = 'ready'
elseif verb == 'cancel' and (before == 'ready' or before == 'paused' or before == 'staged') then
  cancel()
elseif verb == 'retry' and p.lap < lap then
  retry()
elseif verb == 'limit' and not p.info[LIMITED] then
  limit()
else
  changed = false
end
if changed then
  if before == 'staged' and p.state ~= 'staged' then redis.call('ZREM', STAGED, p.handle) end
  put(p)
end
save()
if verb == 'release' or verb == 'resume' or verb == 'retry' then
  redis.call('PUBLISH', ARGV[6], ARGV[7])
end
return 1
