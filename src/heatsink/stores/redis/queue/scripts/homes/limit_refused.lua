-- limit_refused: now, started_per_s, retry_after_ms. Answers to one surge count once.
if limit.floor and now - limit.since_ms < GUARD_MS then return 0 end
local floor, ceiling
if not limit.floor then
  floor, ceiling = tonumber(ARGV[2]) * SEARCH_DROP, 0
else
  local per_s = pace()
  local searching = limit.ceiling == 0 and per_s <= limit.floor
  floor = per_s * (searching and SEARCH_DROP or DROP)
  ceiling = searching and 0 or per_s
end
keep('floor', math.max(floor, SLOWEST_PER_S), 'ceiling', ceiling, 'since_ms', now,
  'next_ms', math.max(next_ms, now + tonumber(ARGV[3])))
return 1
