-- accept: now, channel, partition, index of all batches, maximum number of listed batches, seconds
-- to keep the list, then of each batch: handle and packed part, body and its digest in hexadecimal,
-- key and text of its record, key of its lane's rate limit, index of its tenant, count and period in
-- seconds of the rate that it was submitted with ("" without a rate).
-- Stores each record and its released part, unless there is a record. If the lane has a rate limit,
-- the part waits for grants. Returns for each batch 1, or 0 if another submission has its record, or
-- its lane is not limited to its rate.
begin()
local INLINE_MAX = 1024 -- bytes of an item that is in the part's own hash
local INDEX_MAX, KEEP_S, WORDS = tonumber(ARGV[5]), ARGV[6], 10
local answers, lines, others, indexes, limits = {}, {}, {}, {}, {}

-- The rate limit of a lane: its declared rate, and whether it has any limit.
local function limit_of(key)
  if not limits[key] then
    local count, period_s, level = unpack(redis.call('HMGET', key, 'count', 'period_s', 'level'))
    limits[key] = { count = tonumber(count or nil), period_s = tonumber(period_s or nil),
      exists = (count or level) and true or false }
  end
  return limits[key]
end

local function has_rate(limit, count, period_s)
  return count == '' or (limit.count == tonumber(count) and limit.period_s == tonumber(period_s))
end

local function add(list, score, name) list[#list + 1], list[#list + 2] = score, name end

local function generation_of(text)
  return cmsgpack.unpack(string.sub(text, string.match(text, '^%d+ %S* ()'))).generation
end

local function store_chunk(p, body)
  local key = #body <= INLINE_MAX and p.key or p.key .. '/chunks'
  redis.call('HSET', key, 'b0', body, 'c0', 1, 'l0', 1)
end

-- Any other part: an ordinary hash, written by the functions that all scripts use.
local function accept_other(p, body, digest)
  p = new_part(p.handle, p.packed)
  p.stamp, p.fresh, p.staged, p.digest = math.floor(now), 1, 1, tonumber(digest, 16)
  p.state = 'ready'
  store_chunk(p, body)
  others[#others + 1] = p
end

-- A part whose item may run now, written with all others of this call.
local function accept_ready(p, body, digest)
  local purse, stamp = purse_of(p), math.floor(now)
  new_singles[#new_singles + 1] = p.handle
  new_singles[#new_singles + 1] = short_form(p.packed, p.home, stamp, digest, body)
  meta.waiting = meta.waiting + 1
  count_in(DEPTHS, p.info[ACTION], 1)
  count_in(CENSUS, purse.name, 1)
  add(lived, 0, p.handle)
  add(aged, math.max(stamp, start_ms(p)), p.handle)
  local line = line_of(p)
  lines[line] = lines[line] or {}
  add(lines[line], score_of(p), p.handle)
  if not purse.active then start_purse(p) end
end

local function is_simple(p, body)
  local info = p.info
  return start_ms(p) <= now and #body <= INLINE_MAX and not is_paused(p) and not info[LIMITED]
    and info[RESULT_BYTES] == 0 and not info[KEEPS_ITEMS] and info[KEEP_MS] == 0
end

local function accept(is_rated, handle, packed, body, digest, home)
  local p = { handle = handle, key = root .. 'part/' .. handle, packed = packed, home = home,
    info = cmsgpack.unpack(packed), fresh = 1, delayed = 0, suspects = 0 }
  if is_rated and not p.info[LIMITED] then
    p.info[LIMITED] = true
    p.packed = cmsgpack.pack(p.info)
  end
  if is_simple(p, body) then
    accept_ready(p, body, digest)
  else
    redis.call('HSET', p.key, 'packed', p.packed, 'home', home)
    accept_other(p, body, digest)
  end
  return p.info
end

for i = 7, #ARGV, WORDS do
  local home, record, limit, index = ARGV[i + 4], ARGV[i + 5], limit_of(ARGV[i + 6]), ARGV[i + 7]
  if has_rate(limit, ARGV[i + 8], ARGV[i + 9]) and redis.call('SET', home, record, 'NX') then
    local info = accept(limit.exists, unpack(ARGV, i, i + 4))
    for _, name in ipairs({ ARGV[4], index }) do
      indexes[name] = indexes[name] or {}
      add(indexes[name], info[SUBMITTED], info[BATCH])
    end
    answers[#answers + 1] = 1
  else
    local known = redis.call('GET', home)
    local is_mine = known and generation_of(known) == generation_of(record)
    answers[#answers + 1] = is_mine and 1 or 0
  end
end
for line, words in pairs(lines) do call_many('ZADD', line, words) end
for _, p in ipairs(others) do put(p) end -- looks at the lines
for index, words in pairs(indexes) do
  call_many('ZADD', index, words)
  redis.call('ZREMRANGEBYRANK', index, 0, -INDEX_MAX - 1)
  redis.call('EXPIRE', index, KEEP_S)
end
save()
redis.call('PUBLISH', ARGV[2], ARGV[3])
return answers
