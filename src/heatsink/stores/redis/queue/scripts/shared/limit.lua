-- A rate limit: the Lua twin of bulk/rates.py, which explains it.
local LATE_MS = 20
local GRANTS_PER_S_MAX = 100
local GRANTS_MAX = 1000
local HOLD_S, CLIMB_S, PROBE_S = 1, 10, 20
local NEAR, DROP, SEARCH_DROP = 0.98, 0.94, 0.5
local SEARCH_GROWTH_PER_S, PROBE_GROWTH_PER_S = 0.25, 0.01
local GUARD_MS = 500
local SLOWEST_PER_S = 0.1
local GROWTH_S_MAX = 1000
local RATE_MAX = 10000000
local IDLE_MS = 30 * 24 * 3600 * 1000

local limit = {}
do
  local stored = redis.call('HGETALL', KEYS[1])
  for i = 1, #stored, 2 do limit[stored[i]] = tonumber(stored[i + 1]) end
end
local next_ms = limit.next_ms or 0

local function keep(...)
  redis.call('HSET', KEYS[1], ...)
  redis.call('PEXPIRE', KEYS[1], IDLE_MS)
end

local function exactly(number) return string.format('%.17g', number) end

-- As Python divides: exact where a quotient that was rounded first would be one too many.
local function whole_times(number, unit)
  return math.floor((number - math.fmod(number, unit)) / unit + 0.5)
end

local function grown(per_s, growth_per_s, seconds)
  return math.min(per_s * (1 + growth_per_s) ^ math.min(seconds, GROWTH_S_MAX), RATE_MAX)
end

local function pace()
  local past_s = math.max(now - limit.since_ms, 0) / 1000 - HOLD_S
  if past_s <= 0 then return limit.floor end
  if limit.ceiling == 0 then return grown(limit.floor, SEARCH_GROWTH_PER_S, past_s) end
  local near = limit.ceiling * NEAR
  if past_s < CLIMB_S then return limit.floor + (near - limit.floor) * past_s / CLIMB_S end
  return grown(near, PROBE_GROWTH_PER_S, math.max(past_s - PROBE_S, 0))
end

local function rate()
  local declared = limit.count and limit.count / limit.period_s
  local explored = limit.floor and pace()
  if declared and explored then return math.min(declared, explored) end
  return declared or explored
end

-- How many starts a grant holds, and how far apart grants are.
local function calendar()
  local per_s = rate()
  if not per_s then return GRANTS_MAX, 0 end
  local size = math.max(1, whole_times(per_s, GRANTS_PER_S_MAX))
  local step_ms = 1000 * size / per_s
  if limit.count then
    local grants = math.max(whole_times(limit.count, size), 1)
    step_ms = math.max(step_ms, (1000 * limit.period_s + LATE_MS) / grants)
  end
  return size, step_ms
end
