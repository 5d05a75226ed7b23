-- settle: now, lease_ms, packed outcomes {attempt, marks, used_us, setbacks, offsets}, packed attempts
-- to renew, then the results of the items at these offsets, of all outcomes. Records the outcomes,
-- with the results of items that are done, and renews leases. Returns the attempts whose lease is gone.
begin()
local until_ms = now + tonumber(ARGV[2])
local lost, is_lost = {}, {}

local function miss(attempt)
  lost[#lost + 1] = attempt
  is_lost[attempt] = true
end

local outcomes, attempts, word = cmsgpack.unpack(ARGV[3]), {}, 4
for i, outcome in ipairs(outcomes) do attempts[i] = outcome[1] end
read_leases(attempts)

-- The done items whose parts are in short form, by attempt, with the texts of their records.
local function read_singles()
  local found, handles, singles = {}, {}, {}
  for _, outcome in ipairs(outcomes) do
    local lease = leases[outcome[1]]
    if lease and outcome[2] == 'd' and not outcome[5] and string.byte(lease) < 128 then
      found[#found + 1] = outcome[1]
      handles[#handles + 1] = string.sub(lease, 1, HANDLE)
    end
  end
  for first = 1, #found, 1000 do
    local last = math.min(first + 999, #found)
    local page = redis.call('HMGET', SINGLES, unpack(handles, first, last))
    local homes, here = {}, {}
    for i, text in ipairs(page) do
      if text then
        local attempt, single = found[first + i - 1], { handle = handles[first + i - 1] }
        local _
        single.packed, single.home, _, _, single.opening, single.keep_ms = of_short_form(text)
        single.lease = find_lease(attempt)
        singles[attempt], here[#here + 1], homes[#homes + 1] = single, single, single.home
      end
    end
    local records = homes[1] and redis.pcall('MGET', unpack(homes)) or {}
    for i, single in ipairs(here) do single.record = records[i] end
  end
  return singles
end

local singles = read_singles()
for _, outcome in ipairs(outcomes) do
  local attempt, marks, used_us, setbacks, offsets = unpack(outcome)
  local results
  if offsets then
    results = {}
    for i, offset in ipairs(offsets) do results[i] = { offset, ARGV[word + i] } end
    word = word + #offsets
  end
  local single = not is_forgotten[attempt] and singles[attempt]
  if not (single and settle_single(single, used_us)) then
    if not settle(attempt, marks, used_us, setbacks, results) then miss(attempt) end
  end
end
save_leases()
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
