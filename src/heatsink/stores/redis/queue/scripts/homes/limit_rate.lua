-- limit_rate: now. Returns the rate per second, or nil without a limit.
local per_s = rate()
return per_s and exactly(per_s)
