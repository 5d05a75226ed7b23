-- limit_rate: now
local per_s = rate()
return per_s and exactly(per_s)
