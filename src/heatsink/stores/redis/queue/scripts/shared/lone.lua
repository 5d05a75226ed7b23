-- The shortest way of accept.lua: a call brings one simple single, nothing else waits, and the standing
-- claim takes the single. This writes what accept.lua would write. In every other case it changes
-- nothing, and accept.lua goes on. All functions and tables are made anew in each call of a script:
-- those of the other shared files take as long as this whole function.
local function accept_lone()
  if #ARGV ~= 19 or ARGV[7] ~= '1' or ARGV[10] ~= '' or told == 0 or late > 0 then return false end
  local root, meta = KEYS[1], KEYS[2]
  local standing, owner, until_ms, held, moved, rules, virtual, claimed, in_flight =
    unpack(redis.call('HMGET', meta, 'standing', 'owner', 'until_ms', 'held', 'moved', 'rules',
      'virtual', 'claimed', 'in_flight'))
  if (standing or '') == '' or moved or since > tonumber(held or 0) or (rules or '0') ~= '0' then
    return false
  end
  local claimer, attempt, lease_ms, bell = unpack(cmsgpack.unpack(standing))
  if owner ~= claimer or now >= tonumber(until_ms or 0) then return false end

  local handle, packed, body, digest, home, record = unpack(ARGV, 13, 18)
  local id, batch, _, action, submitted, _, limited, weight, _, purse, _, start, result_bytes,
    keeps_items, keep_ms = unpack(cmsgpack.unpack(packed), 1, 15)
  if #body > 1024 or limited or (start or 0) > now or result_bytes ~= 0 or keeps_items
    or keep_ms ~= 0 then return false end
  local declared, level = unpack(redis.call('HMGET', ARGV[8], 'count', 'level'))
  if declared or level or redis.call('EXISTS', root .. 'tenants') == 1 then return false end

  if not redis.call('SET', home, record, 'NX') then return false end
  local name = attempt .. ':' .. id
  local heard = redis.pcall('PUBLISH', bell, table.concat({ 'H', ARGV[3], ' ', exactly(now), ' ',
    attempt, ' ', #packed, ' ', packed, body }))
  if type(heard) ~= 'number' or heard == 0 then
    redis.call('DEL', home)
    return false
  end

  local cost_us = tonumber(redis.call('HGET', root .. 'service', action) or 1000)
  local time_us = tonumber(redis.call('ZSCORE', root .. 'times', purse) or 0)
  time_us = math.max(time_us, tonumber(virtual or 0))
  redis.call('HSET', meta, 'time', time, 'standing', '', 'handed_over', name, 'virtual', time_us,
    'claimed', (claimed or 0) + 1, 'in_flight', (in_flight or 0) + 1)
  redis.call('ZADD', root .. 'times', math.max(time_us + cost_us / weight, 0), purse)
  redis.call('HSET', root .. 'leases', name, handle .. exactly(cost_us))
  redis.call('ZADD', root .. 'expiry', now + lease_ms, name)
  local stamp, kept_ms = math.floor(now), ARGV[12]
  local opening = kept_ms ~= '0' and string.match(record, '^1 %S+ ')
  local short = opening and cmsgpack.pack(packed, home, stamp, body, opening, kept_ms)
    or cmsgpack.pack(packed, home, stamp, body)
  redis.call('HSET', root .. 'singles', handle, '1' .. digest .. short)
  redis.call('ZADD', root .. 'live', 0, handle)
  if redis.call('HINCRBY', root .. 'census', purse, 1) == 0 then
    redis.call('HDEL', root .. 'census', purse)
  end
  for _, index in ipairs({ ARGV[4], ARGV[9] }) do
    redis.call('ZADD', index, submitted, batch)
    redis.call('ZREMRANGEBYRANK', index, 0, -ARGV[5] - 1)
    redis.call('EXPIRE', index, ARGV[6])
  end
  return true
end

if accept_lone() then return { 1 } end
