-- Which part is served next: tenants by virtual time, a tenant's parts by score. The same as
-- Rotation in stores/memory/queue/parts.py, which explains it. A purse is a tenant's account of
-- virtual time; it is active while the tenant has parts to serve. A line is the order of the parts
-- that share a purse, or a rate-limited lane.
local purses = {}
local is_empty = {} -- lines, as far as it is known

local function purse_of(p)
  local name = p.info[PURSE]
  local purse = purses[name]
  if not purse then
    local time = redis.call('ZSCORE', TENANTS, name)
    purse = { name = name, active = time and true or false }
    if not time then
      time = redis.call('ZSCORE', TIMES, name)
      purse.kept = time and true or false -- in TIMES
    end
    purse.time = tonumber(time or nil)
    purses[name] = purse
  end
  return purse
end

-- Write the times of the purses that were charged. Called before TENANTS is read.
local function save_purses()
  for _, purse in pairs(purses) do
    if purse.owes then
      redis.call('ZADD', purse.active and TENANTS or TIMES, purse.time, purse.name)
      purse.owes, purse.kept = nil, not purse.active
    end
  end
end
at_save[#at_save + 1] = save_purses

local function charge(p, cost_us)
  local purse = purse_of(p)
  purse.time = math.max((purse.time or meta.virtual) + cost_us / weight_of(p), 0)
  purse.owes = true
  if p.info[LIMITED] and redis.call('EXISTS', TENANTS) == 0 then -- no other tenant had to wait
    meta.virtual = math.max(meta.virtual, purse.time)
  end
end

local function forget_savings(purse)
  if not purse.active and purse.time and purse.time <= meta.virtual then
    if purse.kept then redis.call('ZREM', TIMES, purse.name) end
    purse.time, purse.owes, purse.kept = nil, nil, false
  end
end

local function line_of(p)
  return root .. 'line/' .. p.info[p.info[LIMITED] and LANE_LINE or PURSE]
end

local function retire(p)
  local purse = purse_of(p)
  if purse.active and not p.info[LIMITED] then
    purse.active, purse.owes, purse.kept = false, nil, true
    redis.call('ZREM', TENANTS, purse.name)
    redis.call('ZADD', TIMES, purse.time, purse.name)
  end
  forget_savings(purse)
end

local function leave_line(line, handles)
  call_many('ZREM', line, handles)
  is_empty[line] = nil
end

local function retire_from(line, p)
  if is_empty[line] == nil then is_empty[line] = redis.call('EXISTS', line) == 0 end
  if is_empty[line] then retire(p) end
end

local function leave(p)
  local line = line_of(p)
  if p.at == 'line' then leave_line(line, { p.handle }) end
  if p.at == 'sleep' or p.at == 'early' then redis.call('ZREM', SLEEPING, p.handle) end
  if p.at == 'held' then
    redis.call('SREM', held_by_tenant(p), p.handle)
    redis.call('SREM', held_by_action(p), p.handle)
  end
  p.at = ''
  retire_from(line, p)
end

local function score_of(p)
  local work_s = waiting(p) * cost_of(p) / 1e6
  return math.max(p.info[SUBMITTED], start_ms(p)) / 1000 + work_s - p.info[PRIORITY] * 1e9
end

local function start_purse(p)
  local purse = purse_of(p)
  local time = math.max(purse.time or 0, meta.virtual)
  if purse.active and time == purse.time then return end
  if purse.kept then redis.call('ZREM', TIMES, purse.name) end
  purse.time, purse.active, purse.owes, purse.kept = time, true, nil, false
  redis.call('ZADD', TENANTS, time, purse.name)
end

local function stay(p)
  redis.call('ZADD', line_of(p), score_of(p), p.handle)
  is_empty[line_of(p)] = false
  if redis.call('ZCARD', line_of(p)) > 1 then return end
  if p.info[LIMITED] then forget_savings(purse_of(p)) else start_purse(p) end
end

local function line_up(p)
  leave(p)
  p.at = 'line'
  redis.call('ZADD', line_of(p), score_of(p), p.handle)
  is_empty[line_of(p)] = false
  if not p.info[LIMITED] and not purse_of(p).active then start_purse(p) end
end

-- A part whose start time has not come sleeps as 'early': its items do not count as waiting.
local function sleep_until(p, due_ms)
  leave(p)
  p.at = start_ms(p) > now and 'early' or 'sleep'
  redis.call('ZADD', SLEEPING, due_ms, p.handle)
end

-- A part of a paused tenant or action is in no line, until a sweep of control.lua finds it.
local function hold_back(p)
  leave(p)
  p.at = 'held'
  local key = rule('t' .. p.info[PURSE]) and held_by_tenant(p) or held_by_action(p)
  redis.call('SADD', key, p.handle)
  redis.call('SADD', HELD, key)
end

local function due_ms(p)
  if start_ms(p) > now and waiting(p) > 0 then return start_ms(p) end
  if p.fresh > 0 or p.suspects > 0 then return now end
  if p.delayed == 0 then return nil end
  return tonumber(redis.call('ZRANGE', p.key .. '/delayed', 0, 0, 'WITHSCORES')[2])
end

local function ends(p)
  local may_end = p.state == 'ready' or p.state == 'paused' or p.state == 'cancelled'
  return may_end and waiting(p) + p.running == 0
end

-- Free the chunks of a cancelled part, but keep those with failures, which can be retried. If many
-- items failed, nearly all chunks stay, so freeing is not worth the time.
local function free(p)
  if p.home then
    redis.call('HDEL', chunks_of(p), 'b0', 'c0', 'l0')
    return
  end
  if p.failed > FREE_MAX then return end
  local chunks, kept = p.key .. '/chunks', {}
  for _, place in ipairs(redis.call('ZRANGE', p.key .. '/failures', 0, -1)) do
    local number = tonumber(string.sub(place, 1, 8))
    kept['b' .. number], kept['l' .. number] = true, true
  end
  for name in pairs(kept) do kept[name] = redis.call('HGET', chunks, name) end
  redis.call('UNLINK', chunks, p.key .. '/notes')
  for name, value in pairs(kept) do redis.call('HSET', chunks, name, value) end
end

-- Where the packed record begins in the text of a record, whose first version is at `at`.
local function packed_at(text, at)
  return string.byte(text, at) == ENDED and string.match(text, '^E%d+ %S+ ()', at) or at
end

local function unpacked(p, text, at, next_tag)
  local record = cmsgpack.unpack(string.sub(text, packed_at(text, at)))
  local place = record.parts and record.parts[1]
  local is_open = IS_OPEN[record.state] and record.on_done == '' and #record.ends == 0
  local is_followed = record['then'] or record.otherwise
  if is_followed or not (is_open and place and #record.parts == 1 and place.id == p.info[ID]) then return nil end
  if place.items ~= 1 or #place.missing > 0 or record.lap ~= p.lap then return nil end
  local ending = { batch = p.info[BATCH], part = p.info[ID], lap = p.lap, done = 1, failed = 0,
    cancelled = 0 }
  record.ends, record.state, record.ended_ms = { ending }, 'done', math.floor(now)
  record.version, record.tag = record.version + 1, next_tag
  return string.format('%.0f %s ', record.version, next_tag) .. cmsgpack.pack(record)
end

-- How long the record of a batch of one item is kept after its end.
local function keep_single_ms(p, record)
  if (p.info[KEEP_MS] or 0) > 0 then return p.info[KEEP_MS] end
  return string.find(record, '\171fingerprint\160', 1, true) and SINGLE_MS or RECORD_MS
end

-- A batch of one item has its record on this server, in `home`. Once the item is done, end the
-- record as changes.concluded() does. Returns false, and changes nothing, if more is to be done for
-- the end: then the partition's owner reports it, as the end of any other part.
local function end_record(p)
  local text = redis.pcall('GET', p.home)
  if type(text) ~= 'string' then return false end
  local version, tag, at = string.match(text, '^(%d+) (%S*) ()')
  if not version then return false end
  local next_tag = string.sub(redis.sha1hex(tag .. exactly(now)), 1, 16)
  local ended = unpacked(p, text, at, next_tag)
  if not ended then return false end
  redis.call('SET', p.home, ended, 'PX', keep_single_ms(p, ended))
  return true
end

-- The same for the part of a single in short form, whose record is still the one that accept.lua
-- has stored: `text` begins with `opening`. The time of its end comes before the packed record,
-- which stays as it is. `keep_ms` is how long the record is kept. All records that a call ends get
-- the same tag.
local ended_opening
local function end_single(home, text, opening, keep_ms)
  if not text or string.sub(text, 1, #opening) ~= opening then return false end
  if not ended_opening then
    local tag = string.sub(redis.sha1hex(opening .. exactly(now)), 1, 16)
    ended_opening = '2 ' .. tag .. ' E' .. string.format('%.0f', math.floor(now)) .. ' ' .. tag .. ' '
  end
  redis.call('SET', home, ended_opening .. string.sub(text, #opening + 1), 'PX', keep_ms)
  return true
end

local function conclude(p)
  if p.done ~= 1 or p.failed + p.cancelled + p.lost > 0 then return false end
  if not end_record(p) then return false end
  if p.lap > 0 then -- the end before a retry may not have been reported yet
    redis.call('HDEL', ENDS, p.handle)
    redis.call('ZREM', OUTBOX, p.handle)
  end
  p.concluded = (p.info[RESULT_BYTES] or 0) == 0
  if not p.concluded then -- the part has the item's result
    free(p)
    let_expire(p, p.info[KEEP_MS] > 0 and p.info[KEEP_MS] or RECORD_MS)
  end
  return true
end

local function put(p)
  if ends(p) then
    leave(p)
    if p.cancelled > 0 then free(p) end
    p.state = 'finished'
    if p.home then
      if conclude(p) then return end
      if p.failed == 0 and not p.info[KEEPS_ITEMS] then free(p) end
    end
    local ending = { p.info[BATCH], p.info[ID], p.lap, p.done, p.failed, p.cancelled }
    redis.call('HSET', ENDS, p.handle, cmsgpack.pack(ending))
    redis.call('ZADD', OUTBOX, now, p.handle)
    return
  end
  local due = p.state == 'ready' and due_ms(p)
  if not due then
    leave(p)
  elseif is_paused(p) then
    hold_back(p)
  elseif due > now then
    sleep_until(p, due)
  elseif p.at == 'line' then
    stay(p)
  else
    line_up(p)
  end
end
