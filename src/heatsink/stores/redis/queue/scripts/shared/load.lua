-- What a partition has to do and has done. Only delays have to be counted: nobody is told when one
-- is over. Where many parts have some, a count serves for a second.
local LATE_MAX = 64
local RECOUNT_MS = 1000

local function count_late()
  local delayed, limited = 0, 0
  local later = '(' .. string.format('%.17g', now)
  for _, handle in ipairs(redis.call('SMEMBERS', LATE)) do
    local count = redis.call('ZCOUNT', root .. 'part/' .. handle .. '/delayed', later, '+inf')
    delayed = delayed + count
    if count > 0 and find_part(handle).info[LIMITED] then limited = limited + count end
  end
  return delayed, limited
end

local function late()
  if redis.call('SCARD', LATE) <= LATE_MAX then return count_late() end
  if now - (meta.late_ms or 0) >= RECOUNT_MS then
    meta.late, meta.late_limited = count_late()
    meta.late_ms = now
    redis.call('HSET', META, 'late', meta.late, 'late_limited', meta.late_limited, 'late_ms', now)
  end
  return math.min(meta.late, meta.waiting), math.min(meta.late_limited, meta.limited)
end

local function load()
  local delayed, late_limited = late()
  local cost_us, depths = 0, redis.call('HGETALL', DEPTHS)
  for i = 1, #depths, 2 do
    local each_us = tonumber(redis.call('HGET', SERVICE, depths[i]) or SERVICE_US)
    cost_us = cost_us + depths[i + 1] * each_us
  end
  local limited = meta.limited - late_limited
  local oldest = redis.call('ZRANGE', AGES, 0, 0, 'WITHSCORES')[2]
  return { math.max(meta.waiting - delayed - limited, 0), limited, delayed, meta.in_flight,
    redis.call('HLEN', CENSUS),
    string.format('%.17g', meta.waiting > 0 and cost_us / meta.waiting or 0),
    oldest and math.max(math.floor(now - oldest), 0) or 0,
    meta.claimed, meta.done, meta.failed, meta.retried, meta.fenced, meta.lost, meta.workers }
end
