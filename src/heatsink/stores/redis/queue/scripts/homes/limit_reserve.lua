-- limit_reserve: now, starts, ahead_ms. Answers size and number of grants, first, step, now.
local starts, ahead_ms = tonumber(ARGV[2]), tonumber(ARGV[3])
local size, step_ms = calendar()
local wanted = math.min(math.ceil(starts / size), GRANTS_MAX)
local first_ms = math.max(next_ms, now)
if step_ms > 0 then
  local in_time = whole_times(math.max(now + ahead_ms - first_ms, 0), step_ms) + 1
  wanted = math.min(wanted, in_time)
end
keep('next_ms', first_ms + step_ms * wanted)
return { size, wanted, exactly(first_ms), exactly(step_ms), exactly(now) }
