-- fleet_plan: replaces plans older than this version ("-inf": none), version, record.
-- Returns the plan in force.
local known = redis.call('HGET', KEYS[1], 'version')
if not known or (ARGV[1] ~= '-inf' and tonumber(ARGV[1]) > tonumber(known)) then
  redis.call('HSET', KEYS[1], 'version', ARGV[2], 'record', ARGV[3])
end
return redis.call('HGET', KEYS[1], 'record')
