-- The home of a limit: the same as stores/memory/queue/places.py, which explains it.
-- KEYS[1] and KEYS[2] are its hash. Each key of the limit has a hash of its own, `…/key/HANDLE`:
-- `name`, `line`, `moved`, `hHOLDER` (a packed holder) and `sRATE` (packed starts). `…/keys` is a
-- sorted set of the handles, by the time until which the key is kept.
local OFFER_MS, MERGED, PLACES_MAX = 100, 64, 1000000
local KEEP_MS = 30 * 24 * 3600 * 1000
local root, LISTED = KEYS[1] .. '/key/', KEYS[1] .. '/keys'

local home = {}
do
  local names = { 'server', 'confirmed', 'rebuilt', 'rule', 'ruled_by', 'silent', 'quiet_ms',
    'lease_ms', 'moved_ms', 'ruled' }
  local words = redis.call('HMGET', KEYS[1], unpack(names))
  for i = 1, 6 do home[names[i]] = words[i] or '' end
  for i = 7, #names do home[names[i]] = tonumber(words[i] or 0) end
  if late > 0 then
    if home.quiet_ms > now - late then home.quiet_ms = home.quiet_ms + late end
    home.moved_ms = home.moved_ms + late
  end
end

local function keep_home()
  redis.call('HSET', KEYS[1], 'time', time, 'server', home.server, 'rebuilt', home.rebuilt,
    'silent', home.silent, 'quiet_ms', exactly(home.quiet_ms), 'lease_ms', exactly(home.lease_ms),
    'moved_ms', exactly(home.moved_ms))
  redis.call('PEXPIRE', KEYS[1], KEEP_MS)
end

-- Holders are { turn, until_ms, bell, running, fresh, want, line, offer_ms }.
local FIELDS = { 'turn', 'until_ms', 'bell', 'running', 'fresh', 'want', 'line', 'offer_ms' }

local function find_key(handle)
  local key = { handle = handle, holders = {}, starts = {}, line = 0, moved = home.moved_ms,
    changed = {}, dropped = {} }
  local stored = redis.call('HGETALL', root .. handle)
  for i = 1, #stored, 2 do
    local field, value = stored[i], stored[i + 1]
    local kind, name = string.sub(field, 1, 1), string.sub(field, 2)
    if field == 'line' or field == 'moved' then key[field] = tonumber(value)
    elseif field == 'name' then key.name = value
    elseif kind == 's' then key.starts[name] = cmsgpack.unpack(value)
    elseif kind == 'h' then
      local holder = { name = name }
      for at, word in ipairs(cmsgpack.unpack(value)) do holder[FIELDS[at]] = word end
      key.holders[name] = holder
    end
  end
  local by_ms = home.moved_ms - key.moved
  key.moved = home.moved_ms
  if by_ms ~= 0 then
    for _, holder in pairs(key.holders) do
      holder.until_ms = holder.until_ms + by_ms
      if holder.offer_ms ~= 0 then holder.offer_ms = holder.offer_ms + by_ms end
      key.changed[holder] = true
    end
    for _, found in pairs(key.starts) do
      for _, each in ipairs(found) do each[1], each[2] = each[1] + by_ms, each[2] + by_ms end
    end
  end
  return key
end

local function keep_key(key, keep_ms)
  local words = { 'name', key.name, 'line', key.line, 'moved', exactly(key.moved) }
  for name, found in pairs(key.starts) do
    words[#words + 1] = 's' .. name
    words[#words + 1] = cmsgpack.pack(found)
  end
  for holder in pairs(key.changed) do
    if key.holders[holder.name] then
      local packed = {}
      for at, field in ipairs(FIELDS) do packed[at] = holder[field] end
      words[#words + 1] = 'h' .. holder.name
      words[#words + 1] = cmsgpack.pack(packed)
    end
  end
  if #key.dropped > 0 then redis.call('HDEL', root .. key.handle, unpack(key.dropped)) end
  redis.call('HSET', root .. key.handle, unpack(words))
  redis.call('PEXPIRE', root .. key.handle, keep_ms)
  redis.call('ZADD', LISTED, now + keep_ms, key.handle)
end

local function held(holder) return holder.running + holder.fresh end
