-- accept: now, channel, partition, index of all batches, maximum number of listed batches, seconds
-- to keep the list, then of each batch: handle and packed part, body and its digest, key, version,
-- tag and packed record, key of its lane's rate limit, index of its tenant.
-- Stores each record and its released part, unless there is a record or a rate limit. Returns for
-- each batch 1, or 0 if another submission has its record, or its lane has a limit.
begin()
local INLINE_MAX = 1024 -- bytes of an item that is in the part's own hash
local INDEX_MAX, KEEP_S, WORDS = tonumber(ARGV[5]), ARGV[6], 10
local answers, lines, early, indexes, limited = {}, {}, {}, {}, {}

local function is_limited(key)
  if limited[key] == nil then
    local count, level = unpack(redis.call('HMGET', key, 'count', 'level'))
    limited[key] = (count or level) and true or false
  end
  return limited[key]
end

local function add(list, score, name) list[#list + 1], list[#list + 2] = score, name end

local function generation_of(record) return cmsgpack.unpack(record).generation end

local function store_chunk(p, body)
  local key = #body <= INLINE_MAX and p.key or p.key .. '/chunks'
  redis.call('HSET', key, 'b0', body, 'c0', 1, 'l0', 1)
end

-- A part whose start time has not come, by the functions that other scripts use for all parts.
local function accept_early(p, body, digest)
  p = new_part(p.handle, p.packed)
  p.stamp, p.fresh, p.staged, p.digest = math.floor(now), 1, 1, tonumber(digest)
  p.state = 'ready'
  store_chunk(p, body)
  early[#early + 1] = p
end

-- A part that may run now: written at once, with its effect on the gauges.
local function accept_ready(p, body, digest)
  local purse, stamp = purse_of(p), math.floor(now)
  local words = { 'packed', p.packed, 'home', p.home, 'state', 'ready', 'at', 'line',
    'stamp', stamp, 'fresh', 1, 'staged', 1, 'digest', digest }
  if #body <= INLINE_MAX then
    for _, word in ipairs({ 'b0', body, 'c0', 1, 'l0', 1 }) do words[#words + 1] = word end
  else
    store_chunk(p, body)
  end
  redis.call('HSET', p.key, unpack(words))
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

local function accept(handle, packed, body, digest, home, version, tag, record)
  redis.call('HSET', home, 'version', version, 'tag', tag, 'record', record)
  local p = { handle = handle, key = root .. 'part/' .. handle, packed = packed, home = home,
    info = cmsgpack.unpack(packed), fresh = 1, delayed = 0, suspects = 0 }
  if start_ms(p) > now then
    redis.call('HSET', p.key, 'packed', packed, 'home', home)
    accept_early(p, body, digest)
  else
    accept_ready(p, body, digest)
  end
  return p.info
end

for i = 7, #ARGV, WORDS do
  local home, limit, index = ARGV[i + 4], ARGV[i + 8], ARGV[i + 9]
  local known = redis.call('HGET', home, 'record')
  if known then
    answers[#answers + 1] = generation_of(known) == generation_of(ARGV[i + 7]) and 1 or 0
  elseif is_limited(limit) then
    answers[#answers + 1] = 0
  else
    local info = accept(unpack(ARGV, i, i + 7))
    for _, name in ipairs({ ARGV[4], index }) do
      indexes[name] = indexes[name] or {}
      add(indexes[name], info[SUBMITTED], info[BATCH])
    end
    answers[#answers + 1] = 1
  end
end
for line, words in pairs(lines) do call_many('ZADD', line, words) end
for _, p in ipairs(early) do put(p) end -- looks at the lines
for index, words in pairs(indexes) do
  call_many('ZADD', index, words)
  redis.call('ZREMRANGEBYRANK', index, 0, -INDEX_MAX - 1)
  redis.call('EXPIRE', index, KEEP_S)
end
save()
redis.call('PUBLISH', ARGV[2], ARGV[3])
return answers
