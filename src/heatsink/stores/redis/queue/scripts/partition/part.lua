-- part: now, handle. Returns the fields of PartCounts, or nil if the part is gone.
local p = find_part(ARGV[2])
if not p then return nil end
local size = waiting(p) + p.done + p.failed + p.cancelled + p.running + p.lost
local later, last_ms = 0, 0
if p.delayed > 0 then
  local key = p.key .. '/delayed'
  later = redis.call('ZCOUNT', key, '(' .. exactly(now), '+inf')
  last_ms = tonumber(redis.call('ZRANGE', key, 0, 0, 'REV', 'WITHSCORES')[2] or now) - now
end
return { p.state, size, p.done, p.failed, p.cancelled, p.running, p.delayed, p.lost, p.lap,
  p.digest, p.staged, p.recorded, later, math.max(math.ceil(last_ms), 0),
  p.at ~= 'held' and '' or rule('t' .. p.info[PURSE]) and 'tenant' or 'action' }
