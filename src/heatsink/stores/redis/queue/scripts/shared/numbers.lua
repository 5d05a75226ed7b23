-- A partition's keys and its own numbers, for all its scripts.
local root = KEYS[1]

local STALE_MS = 60000
local SUSPECT_PAUSE_MS = 20
local SUSPECTS_MAX = { [1] = 8 }
local LOSSES_MAX = 3
local SERVICE_US = 1000
local SERVICE_WEIGHT = 0.1
local QUANTUM_US = 20000
local WAKE_MAX, EXPIRE_MAX = 500, 50 -- parts and leases per call; the rest waits
local FREE_MAX = 1000
local RECORD_MS, SINGLE_MS = 604800000, 3600000 -- how long records are kept

local META, TENANTS, TIMES = root .. 'meta', root .. 'tenants', root .. 'times'
local LEASES, EXPIRY, SLEEPING = root .. 'leases', root .. 'expiry', root .. 'sleeping'
local OUTBOX, ENDS, STAGED = root .. 'outbox', root .. 'ends', root .. 'staged'
local LANES, SERVICE, DEPTHS = root .. 'lanes', root .. 'service', root .. 'depths'
local CENSUS, AGES = root .. 'census', root .. 'ages'
local LATE, LATE_LIMITED = root .. 'late', root .. 'late_limited'
local LIVE = root .. 'live' -- handles of parts that were released and have not ended
local RULES, HELD = root .. 'rules', root .. 'held' -- controls; the sets of parts they hold back
local KEPT = root .. 'kept' -- handles of parts that have ended, by the time until which they are kept
local SINGLES = root .. 'singles' -- parts of batches of one item, in their short form: see state.lua

-- Append new names at the end: a part's field `numbers` is how many names it was written with.
local NUMBERS = { 'lap', 'stamp', 'since', 'fresh', 'next_chunk', 'next_offset', 'done', 'failed',
  'cancelled', 'running', 'delayed', 'suspects', 'lost', 'digest', 'staged', 'recorded' }
local PART_KEYS = { '', '/chunks', '/delayed', '/suspects', '/notes', '/failures', '/reasons',
  '/missing', '/record', '/results' }
local ENDED = string.byte('E') -- begins the record of a single that has ended: see rotation.lua
local IS_OPEN = { running = true, paused = true, cancelling = true } -- states of a record
local IS_TEXT = { owner = true, moved_to = true, ruled_by = true, sweep = true, standing = true,
  handed_over = true } -- of META
local IS_LIVE = { ready = true, paused = true, cancelled = true }
local ID, BATCH, TENANT, ACTION, SUBMITTED, LANE, LIMITED, WEIGHT, PRIORITY, PURSE, LANE_LINE,
  START, RESULT_BYTES, KEEPS_ITEMS, KEEP_MS = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15

-- The partition's own numbers ------------------------------------------------------------------

local function zeros()
  return { until_ms = 0, virtual = 0, suspects = 0, in_flight = 0, waiting = 0, limited = 0,
    delayed = 0, delayed_limited = 0, claimed = 0, done = 0, failed = 0, retried = 0, fenced = 0,
    expired = 0, workers = 0, used_us = 0, ruled = 0, rules = 0 }
end

local meta, meta_was = zeros(), zeros()
do
  local stored = redis.call('HGETALL', META)
  for i = 1, #stored, 2 do
    local name, value = stored[i], stored[i + 1]
    value = IS_TEXT[name] and value or tonumber(value)
    meta[name], meta_was[name] = value, value
  end
end

-- A place that gave the partition away refuses callers whose plan is not newer than the move.
if meta.moved and meta.moved >= since then
  return redis.error_reply('PLACE ' .. meta.moved .. ' ' .. (meta.moved_to or ''))
end

-- Every script that changes something calls this first.
local function begin()
  keep_time()
  if since > (meta.held or 0) then -- the newest plan that has the partition here
    redis.call('HSET', META, 'held', since)
    meta.held, meta_was.held = since, since
  end
  move_along(EXPIRY, still_due())
  move_along(STAGED, '-inf')
  if late > 0 and meta.until_ms > now - late then
    meta.until_ms = meta.until_ms + late
    meta_was.until_ms = meta.until_ms
    redis.call('HSET', META, 'until_ms', meta.until_ms)
  end
end

local function save_numbers()
  local fields = {}
  for name, value in pairs(meta) do
    if value ~= meta_was[name] then fields[#fields + 1] = name; fields[#fields + 1] = value end
  end
  if #fields > 0 then redis.call('HSET', META, unpack(fields)) end
end
