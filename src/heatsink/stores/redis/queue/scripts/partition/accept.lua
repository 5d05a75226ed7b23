-- accept: now, channel, partition, index of all batches, maximum number of listed batches, seconds
-- to keep the list, then of each batch: handle and packed part, body and its digest, key, version,
-- tag and packed record, key of its lane's rate limit, index of its tenant.
-- Stores each record and its released part, unless there is a record or a rate limit. Returns for
-- each batch 1, or 0 if another submission has its record, or its lane has a limit.
begin()
local INDEX_MAX, KEEP_S, WORDS = tonumber(ARGV[5]), ARGV[6], 10
local answers, lines, early, indexes, limited = {}, {}, {}, {}, {}

local function is_limited(key)
  if limited[key] == nil then
    local count, level = unpack(redis.call('HMGET', key, 'count', 'level'))
    limited[key] = (count or level) and true or false
  end
  return limited[key]
end

local function add_to(lists, key, score, name)
  local list = lists[key] or {}
  list[#list + 1], list[#list + 2] = score, name
  lists[key] = list
end

local function generation_of(record) return cmsgpack.unpack(record).generation end

local function accept(handle, packed, body, digest, home, version, tag, record)
  redis.call('HSET', home, 'version', version, 'tag', tag, 'record', record)
  local p = new_part(handle, packed)
  p.home, p.stamp, p.fresh, p.staged, p.digest = home, math.floor(now), 1, 1, tonumber(digest)
  p.state = 'ready'
  redis.call('HSET', p.key, 'packed', packed, 'home', home)
  redis.call('HSET', p.key .. '/chunks', 'b0', body, 'c0', 1, 'l0', 1)
  if start_ms(p) > now then
    early[#early + 1] = p
  else
    p.at = 'line'
    add_to(lines, line_of(p), score_of(p), handle)
    if not purse_of(p).active then start_purse(p) end
  end
  return p
end

for i = 7, #ARGV, WORDS do
  local home, limit, index = ARGV[i + 4], ARGV[i + 8], ARGV[i + 9]
  local known = redis.call('HGET', home, 'record')
  if known then
    answers[#answers + 1] = generation_of(known) == generation_of(ARGV[i + 7]) and 1 or 0
  elseif is_limited(limit) then
    answers[#answers + 1] = 0
  else
    local p = accept(unpack(ARGV, i, i + 7))
    add_to(indexes, ARGV[4], p.info[SUBMITTED], p.info[BATCH])
    add_to(indexes, index, p.info[SUBMITTED], p.info[BATCH])
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
