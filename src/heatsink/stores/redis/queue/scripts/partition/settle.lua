-- settle: now, lease_ms, packed outcomes {attempt, marks, used_us, setbacks}, packed attempts to
-- renew. Records the outcomes and renews leases. Returns the attempts whose lease is gone.
begin()
local until_ms = now + tonumber(ARGV[2])
local lost, is_lost = {}, {}

local function miss(attempt)
  lost[#lost + 1] = attempt
  is_lost[attempt] = true
end

for _, outcome in ipairs(cmsgpack.unpack(ARGV[3])) do
  if not settle(unpack(outcome)) then miss(outcome[1]) end
end
meta.fenced = meta.fenced + #lost
for _, attempt in ipairs(cmsgpack.unpack(ARGV[4])) do
  if redis.call('ZSCORE', EXPIRY, attempt) then
    redis.call('ZADD', EXPIRY, until_ms, attempt)
  elseif not is_lost[attempt] then
    miss(attempt)
  end
end
save()
return lost
