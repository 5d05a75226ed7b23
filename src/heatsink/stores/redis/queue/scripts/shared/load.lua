-- The load of a partition. Scripts keep all gauges up to date but one. No event marks the end of a
-- delay, so delayed items are counted here. If many parts have delayed items, a sample is counted.
local SAMPLE = 64

local function later(parts_late, delayed)
  local counted, known = 0, 0
  local after = '(' .. exactly(now)
  for _, handle in ipairs(redis.call('SRANDMEMBER', parts_late, SAMPLE)) do
    local key = root .. 'part/' .. handle .. '/delayed'
    counted = counted + redis.call('ZCOUNT', key, after, '+inf')
    known = known + redis.call('ZCARD', key)
  end
  return known > 0 and math.floor(delayed * counted / known + 0.5) or 0
end

local function load()
  local late_limited = later(LATE_LIMITED, meta.delayed_limited)
  local delayed = later(LATE, meta.delayed) + late_limited
  local cost_us, depths = 0, redis.call('HGETALL', DEPTHS)
  for i = 1, #depths, 2 do
    local each_us = tonumber(redis.call('HGET', SERVICE, depths[i]) or SERVICE_US)
    cost_us = cost_us + depths[i + 1] * each_us
  end
  local limited = meta.limited - late_limited
  local oldest = redis.call('ZRANGE', AGES, 0, 0, 'WITHSCORES')[2]
  return { math.max(meta.waiting - delayed - limited, 0), limited, delayed, meta.in_flight,
    redis.call('HLEN', CENSUS),
    exactly(meta.waiting > 0 and cost_us / meta.waiting or 0),
    oldest and math.max(math.floor(now - oldest), 0) or 0,
    meta.claimed, meta.done, meta.failed, meta.retried, meta.fenced, meta.expired, meta.workers,
    meta.used_us }
end
