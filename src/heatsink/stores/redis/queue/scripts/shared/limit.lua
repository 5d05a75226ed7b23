-- A rate limit: the same as stores/memory/queue/homes.py, which explains it. KEYS[1] is its hash.
local LATE_MS = 20
local GRANTS_PER_S_MAX = 100
local GRANTS_MAX = 1000
local TICKS_PER_MS = 4096
local BOOKED_MS_MAX = 1000
local SLOWEST_PER_S = 0.1
local RATE_MAX = 10000000
local SEARCH_DROP, SEARCH_GROWTH, SEARCH_S_MAX = 0.125, 1.4, 60
local PAUSE_MS = 1000
local STEP_DOWN, CURVE = 0.03, 5e-5
local LINGER_S = (STEP_DOWN / CURVE) ^ (1 / 3)
local NEAR, TRUST_NEAR, TRUST_FAR = 1.1, 0.1, 0.75
local GUARD_MS, QUICK_MS, QUICK_DROP = 500, 2000, 0.85
local AHEAD_MS_MAX = 100
local IDLE_COST = 4
local IDLE_MS = 30 * 24 * 3600 * 1000

local limit = {}
do
  local stored = redis.call('HGETALL', KEYS[1])
  for i = 1, #stored, 2 do limit[stored[i]] = tonumber(stored[i + 1]) end
end
local is_new, next_ms = next(limit) == nil, limit.next_ms or 0
local wide_ms, wide_until_ms = limit.wide_ms or LATE_MS, limit.wide_until_ms or 0
local free_ms = limit.free_ms or 0
if late > 0 then
  if wide_until_ms > 0 then wide_until_ms = wide_until_ms + late end
  if free_ms > 0 then free_ms = free_ms + late end
  next_ms = math.max(next_ms, math.min(next_ms + late, now + BOOKED_MS_MAX + LATE_MS))
end

local function keep(fields)
  next_ms = fields.next_ms or next_ms
  local words = { 'time', time, 'next_ms', exactly(next_ms) }
  if wide_until_ms > 0 then
    for _, word in ipairs({ 'wide_ms', exactly(wide_ms), 'wide_until_ms', exactly(wide_until_ms) }) do
      words[#words + 1] = word
    end
  end
  if free_ms > 0 then words[#words + 1], words[#words + 2] = 'free_ms', exactly(free_ms) end
  for name, value in pairs(fields) do
    words[#words + 1] = name
    words[#words + 1] = type(value) == 'number' and exactly(value) or value
  end
  redis.call('HSET', KEYS[1], unpack(words))
  redis.call('PEXPIRE', KEYS[1], IDLE_MS)
end

local function pace()
  local age_s = math.max(now - limit.since_ms, 0) / 1000
  local growth = 1 + CURVE * (age_s - LINGER_S) ^ 3
  if limit.found == 0 then growth = SEARCH_GROWTH ^ math.min(age_s, SEARCH_S_MAX) end
  return math.min(limit.level * growth, RATE_MAX)
end

local function mean_pace()
  local age_s = math.max(now - limit.since_ms, 1) / 1000
  if limit.found == 0 then return (pace() - limit.level) / math.log(SEARCH_GROWTH) / age_s end
  local risen = (age_s - LINGER_S) ^ 4 - LINGER_S ^ 4
  return limit.level * (1 + CURVE / 4 * risen / age_s)
end

local function rate()
  local declared = limit.count and limit.count / limit.period_s
  local explored = limit.level and pace()
  if declared and explored then return math.min(declared, explored) end
  return declared or explored
end

-- Divide as Python's // does: rounding the quotient first could give one too many.
local function whole_times(number, unit)
  return math.floor((number - math.fmod(number, unit)) / unit + 0.5)
end

local function grant_size(per_s) return math.max(1, whole_times(per_s, GRANTS_PER_S_MAX)) end

-- Returns how many starts a grant holds, and the time between grants in ms, if starts may be late
-- by late_ms.
local function calendar(late_ms)
  local per_s = rate()
  if not per_s then return GRANTS_MAX, 0 end
  local size = grant_size(per_s)
  local step_ms = 1000 * size / per_s
  if limit.count then
    local usable = limit.count - (grant_size(limit.count / limit.period_s) - 1)
    step_ms = math.max(step_ms, (1000 * limit.period_s + late_ms) * size / usable)
  end
  return size, step_ms
end
