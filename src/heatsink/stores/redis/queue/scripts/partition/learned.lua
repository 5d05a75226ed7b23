-- learned: now. Returns what the next place of the partition takes over:
-- {names and values of totals, actions and their measured times}.
local totals = {}
for _, name in ipairs({ 'claimed', 'done', 'failed', 'retried', 'fenced', 'expired', 'used_us' }) do
  totals[#totals + 1] = name
  totals[#totals + 1] = meta[name]
end
return { totals, redis.call('HGETALL', SERVICE) }
