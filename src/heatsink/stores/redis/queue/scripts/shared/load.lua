-- What a partition has to do and has done: totals and gauges, delays aside kept by save().
local function load()
  local delayed, late_limited = 0, 0
  for _, handle in ipairs(redis.call('SMEMBERS', LATE)) do
    local count = redis.call('ZCOUNT', root .. 'part/' .. handle .. '/delayed', '(' .. string.format('%.17g', now), '+inf')
    delayed = delayed + count
    if count > 0 and find_part(handle).info[LIMITED] then late_limited = late_limited + count end
  end
  local cost_us, depths = 0, redis.call('HGETALL', DEPTHS)
  for i = 1, #depths, 2 do
    cost_us = cost_us + depths[i + 1] * tonumber(redis.call('HGET', SERVICE, depths[i]) or SERVICE_US)
  end
  local limited = meta.limited - late_limited
  local oldest = redis.call('ZRANGE', AGES, 0, 0, 'WITHSCORES')[2]
  return { meta.waiting - delayed - limited, limited, delayed, meta.in_flight,
    redis.call('HLEN', CENSUS),
    string.format('%.17g', meta.waiting > 0 and cost_us / meta.waiting or 0),
    oldest and math.max(math.floor(now - oldest), 0) or 0,
    meta.claimed, meta.done, meta.failed, meta.retried, meta.fenced, meta.lost, meta.workers }
end
