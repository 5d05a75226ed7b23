-- limit_refused: now, started_per_s, retry_after_ms. Lowers the rate after a downstream refusal.
-- Refusals within GUARD_MS count as one.
if limit.level and now - limit.since_ms < GUARD_MS then
  keep({})
  return 0
end

local level, since_ms, found
local function search(per_s)
  level, since_ms, found = per_s * SEARCH_DROP, now + PAUSE_MS, 0
end

local function lower()
  local per_s = rate()
  local is_quick = now - limit.since_ms < QUICK_MS
  if is_quick and limit.found == 0 then return search(per_s) end
  local mean = math.min(mean_pace(), per_s)
  local is_near = limit.found == 1 and per_s < NEAR * limit.level
  local trust = is_near and TRUST_NEAR or TRUST_FAR
  level = is_quick and per_s * QUICK_DROP or mean + trust * (per_s - mean)
  since_ms, found = now, 1
end

if limit.level then lower() else search(tonumber(ARGV[2])) end
local resume_ms = math.max(since_ms, now + tonumber(ARGV[3]))
keep({ level = math.max(level, SLOWEST_PER_S), since_ms = since_ms, found = found,
  next_ms = math.max(next_ms, resume_ms) })
return 1
