-- own: now, consumer, ttl_ms, workers. Makes the consumer the owner for ttl_ms, unless another is.
-- Returns {1 if the consumer is the owner, time}.
begin()
local owner = meta.owner or ''
if owner ~= '' and owner ~= ARGV[2] and now < meta.until_ms then
  return { 0, exactly(told) }
end
meta.owner, meta.until_ms, meta.workers = ARGV[2], now + tonumber(ARGV[3]), tonumber(ARGV[4])
save_numbers()
return { 1, exactly(told) }
