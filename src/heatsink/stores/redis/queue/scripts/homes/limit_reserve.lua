-- limit_reserve: now, starts, ahead_ms, late_ms. Books starts, at most ahead_ms ahead of now. They
-- are used at most late_ms late; workers of older versions do not send it.
-- Returns {starts per grant, number of grants, time of the first, ms between grants, now, time that
-- the caller may remember}.
local starts, ahead_ms = tonumber(ARGV[2]), tonumber(ARGV[3])
local idle_ms = now - next_ms
if limit.level and idle_ms > 0 then
  limit.since_ms = math.min(limit.since_ms + IDLE_COST * idle_ms, now)
  keep({ since_ms = limit.since_ms })
end
local late_ms = tonumber(ARGV[4]) or LATE_MS
local widest_ms = math.max(math.max(next_ms, now) < wide_until_ms and wide_ms or LATE_MS, late_ms)
local size, step_ms = calendar(widest_ms)
if starts > 0 and starts < size then size, step_ms = starts, step_ms * starts / size end
step_ms = math.ceil(step_ms * TICKS_PER_MS) / TICKS_PER_MS
local wanted = math.min(math.ceil(starts / size), GRANTS_MAX)
local first_ms = math.max(next_ms, now)
if limit.level then ahead_ms = math.min(ahead_ms, AHEAD_MS_MAX) end
if step_ms > 0 then
  local left_ms = now + ahead_ms - first_ms
  wanted = math.min(wanted, left_ms >= 0 and whole_times(left_ms, step_ms) + 1 or 0)
end
local after_ms = first_ms + step_ms * wanted
if limit.count and wanted > 0 and late_ms > LATE_MS then
  wide_ms = widest_ms
  wide_until_ms = math.max(wide_until_ms, after_ms + 1000 * limit.period_s + late_ms)
end
if wanted > 0 and step_ms == 0 then -- there is no rate
  free_ms = math.max(free_ms, now + BOOKED_MS_MAX + LATE_MS)
end
keep({ next_ms = after_ms })
return { size, wanted, exactly(first_ms), exactly(step_ms), exactly(now), exactly(told) }
