-- fleet_plan: oldest version to keep ("-inf": any), version, record. Stores the record if there is
-- no plan, or if the stored plan is older than the oldest version to keep.
-- Returns the plan that is then stored.
local known = redis.call('HGET', KEYS[1], 'version')
if not known or (ARGV[1] ~= '-inf' and tonumber(ARGV[1]) > tonumber(known)) then
  redis.call('HSET', KEYS[1], 'version', ARGV[2], 'record', ARGV[3])
end
return redis.call('HGET', KEYS[1], 'record')
