-- accept: now, channel, partition, index of all batches, maximum number of listed batches, seconds
-- to keep the list; the number of kinds, and of each kind: key of the lane's rate limit, index of the
-- tenant, count and period in seconds of the rate that was submitted ("" without a rate), how long a
-- record is kept after the item is done (0: more is to be done for the end); then of each batch:
-- handle and packed part, body and its digest in hexadecimal, key and text of its record, its kind.
-- Stores each record and its released part, unless there is a record. If the lane has a rate limit,
-- the part waits for grants. If nothing else waits, the standing claim takes the first part: see
-- claim.lua. (For one simple single, lone.lua has done all of this before.) Returns for each batch 1,
-- or 0 if another submission has its record, or its lane is not limited to its rate.
begin()
local INLINE_MAX = 1024 -- bytes of an item that is in the part's own hash
local INDEX_MAX, KEEP_S, WORDS = tonumber(ARGV[5]), ARGV[6], 7
local answers, lines, others, newest, kinds = {}, {}, {}, {}, {}
local indexes = { [ARGV[4]] = newest }

-- What batches have in common. A lane must have the rate of the batch, if the batch has one.
for i = 8, 7 + 5 * ARGV[7], 5 do
  local limit, index, count, period_s, keep_ms = unpack(ARGV, i, i + 4)
  local declared, per_s, level = unpack(redis.call('HMGET', limit, 'count', 'period_s', 'level'))
  local has_rate = count == '' or (tonumber(declared or nil) == tonumber(count)
    and tonumber(per_s or nil) == tonumber(period_s))
  kinds[#kinds + 1] = { index = index, keep_ms = keep_ms, has_rate = has_rate,
    is_rated = (declared or level) and true or false }
  indexes[index] = {}
end

local function add(list, score, name) list[#list + 1], list[#list + 2] = score, name end

local function generation_of(text)
  local at = packed_at(text, string.match(text, '^%d+ %S* ()'))
  return cmsgpack.unpack(string.sub(text, at)).generation
end

-- The short form of a part, without its beginning: see state.lua.
local function short_form(p, stamp, body, record, keep_ms)
  local opening = keep_ms ~= '0' and string.match(record, '^1 %S+ ')
  if not opening then return cmsgpack.pack(p.packed, p.home, stamp, body) end
  return cmsgpack.pack(p.packed, p.home, stamp, body, opening, keep_ms)
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

-- A part whose item waits to run now, written with all others of this call.
local function line_up_ready(p, body, digest)
  local purse, stamp = purse_of(p), math.floor(now)
  new_singles[#new_singles + 1] = p.handle
  new_singles[#new_singles + 1] = '0' .. digest .. p.short
  meta.waiting = meta.waiting + 1
  count_in(DEPTHS, p.info[ACTION], 1)
  add(aged, math.max(stamp, start_ms(p)), p.handle)
  local line = line_of(p)
  lines[line] = lines[line] or {}
  add(lines[line], score_of(p), p.handle)
  if not purse.active then start_purse(p) end
end

-- Carry the standing claim out: what claim.lua would do if it came now, in fewer steps. Returns false
-- if there is none, if anything else waits, or if its bell hears nothing.
local function hand_over(p, body, digest)
  if (meta.standing or '') == '' or told == 0 then return false end
  local owner, attempt, lease_ms, bell = unpack(cmsgpack.unpack(meta.standing))
  if meta.owner ~= owner or now >= meta.until_ms then return false end
  if redis.call('EXISTS', TENANTS) == 1 then return false end
  local name = attempt .. ':' .. p.info[ID]
  local message = table.concat({ 'H', ARGV[3], ' ', exactly(now), ' ', attempt, ' ', #p.packed, ' ',
    p.packed, body })
  meta.standing = ''
  local heard = redis.pcall('PUBLISH', bell, message)
  if type(heard) ~= 'number' or heard == 0 then return false end
  meta.handed_over = name
  local purse, cost_us = purse_of(p), cost_of(p)
  purse.time = math.max(purse.time or 0, meta.virtual)
  meta.virtual = purse.time
  charge(p, cost_us)
  redis.call('HSET', LEASES, name, p.handle .. exactly(cost_us))
  redis.call('ZADD', EXPIRY, now + lease_ms, name)
  new_singles[#new_singles + 1] = p.handle
  new_singles[#new_singles + 1] = '1' .. digest .. p.short
  meta.claimed, meta.in_flight = meta.claimed + 1, meta.in_flight + 1
  return true
end

local accepted, waits = 0, false -- whether any part waits for a claim

local function accept_ready(p, body, digest, record, keep_ms)
  p.short = short_form(p, math.floor(now), body, record, keep_ms)
  count_in(CENSUS, p.info[PURSE], 1)
  add(lived, 0, p.handle)
  if accepted > 1 or not hand_over(p, body, digest) then
    line_up_ready(p, body, digest)
    waits = true
  end
end

local function is_simple(p, body)
  local info = p.info
  return start_ms(p) <= now and #body <= INLINE_MAX and not is_paused(p) and not info[LIMITED]
    and info[RESULT_BYTES] == 0 and not info[KEEPS_ITEMS] and info[KEEP_MS] == 0
end

local function accept(kind, handle, packed, body, digest, home, record)
  local p = { handle = handle, key = root .. 'part/' .. handle, packed = packed, home = home,
    info = cmsgpack.unpack(packed), fresh = 1, delayed = 0, suspects = 0 }
  if kind.is_rated and not p.info[LIMITED] then
    p.info[LIMITED] = true
    p.packed = cmsgpack.pack(p.info)
  end
  accepted = accepted + 1
  if is_simple(p, body) then
    accept_ready(p, body, digest, record, kind.keep_ms)
  else
    redis.call('HSET', p.key, 'packed', p.packed, 'home', home)
    accept_other(p, body, digest)
    waits = true
  end
  return p.info
end

for i = 8 + 5 * ARGV[7], #ARGV, WORDS do
  local home, record, kind = ARGV[i + 4], ARGV[i + 5], kinds[tonumber(ARGV[i + 6])]
  if kind.has_rate and redis.call('SET', home, record, 'NX') then
    local info = accept(kind, unpack(ARGV, i, i + 5))
    add(indexes[kind.index], info[SUBMITTED], info[BATCH])
    add(newest, info[SUBMITTED], info[BATCH])
    answers[#answers + 1] = 1
  else
    local known = redis.call('GET', home)
    local is_mine = known and generation_of(known) == generation_of(record)
    answers[#answers + 1] = is_mine and 1 or 0
  end
end
for line, words in pairs(lines) do call_many('ZADD', line, words) end
for _, p in ipairs(others) do put(p) end -- looks at the lines
for index, words in pairs(newest[1] and indexes or {}) do -- if nothing is new, nothing changes
  call_many('ZADD', index, words)
  redis.call('ZREMRANGEBYRANK', index, 0, -INDEX_MAX - 1)
  redis.call('EXPIRE', index, KEEP_S)
end
save()
if waits then redis.call('PUBLISH', ARGV[2], ARGV[3]) end
return answers
