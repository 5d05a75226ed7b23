-- The state of one partition, for all its scripts: the same as in stores/memory/queue.
-- Scripts include clock, numbers, state, rotation, items and some also load, in this order.
-- A part is read once, changed in Lua, and written back by save(), which also updates the gauges.
local function call_many(command, key, words)
  for first = 1, #words, 1000 do
    redis.call(command, key, unpack(words, first, math.min(first + 999, #words)))
  end
end

local costs = {}
local function cost_of(p)
  local action = p.info[ACTION]
  if not costs[action] then
    costs[action] = tonumber(redis.call('HGET', SERVICE, action) or SERVICE_US)
  end
  return costs[action]
end

-- Parts ----------------------------------------------------------------------------------------

local parts = {}

local function waiting(p) return p.fresh + p.delayed + p.suspects end

-- When the part's items may start. Parts of older versions have no such time.
local function start_ms(p) return p.info[START] or 0 end

-- Controls. RULES has the weight of a tenant in the field 'w' .. purse. The fields 't' .. purse and
-- 'a' .. action are of paused tenants and actions. Most partitions have no controls.
local rules = {}

local function rule(word)
  if meta.rules == 0 then return false end
  if rules[word] == nil then rules[word] = redis.call('HGET', RULES, word) end
  return rules[word]
end

local function weight_of(p) return tonumber(rule('w' .. p.info[PURSE]) or p.info[WEIGHT]) end

local function is_paused(p) return rule('t' .. p.info[PURSE]) or rule('a' .. p.info[ACTION]) end

-- The keys of the sets that may have the part while it is held back: of its tenant, of its action.
local function held_by_tenant(p) return HELD .. '/t' .. p.info[PURSE] end

local function held_by_action(p) return HELD .. '/a' .. redis.sha1hex(p.info[ACTION]) end

-- Whether the items of a part with this state count as waiting.
local function counts(part)
  return part.state == 'ready' and part.at ~= 'early' and part.at ~= 'held'
end

local function remember(p)
  p.was = { state = p.state, at = p.at, waiting = waiting(p), delayed = p.delayed,
    limited = p.info[LIMITED], packed = p.packed }
  for _, name in ipairs(NUMBERS) do p.was[name] = p[name] end
  parts[p.handle] = p
  return p
end

local function new_part(handle, packed)
  local p = { handle = handle, key = root .. 'part/' .. handle, packed = packed, at = '' }
  p.info = cmsgpack.unpack(packed)
  for _, name in ipairs(NUMBERS) do p[name] = 0 end
  p.state = ''
  return remember(p)
end

-- A part that has lost a field counts as gone. `numbers` says how many of NUMBERS were written when
-- it was staged. Parts of older versions lack it: there an absent number is 0.
local function is_whole(p)
  if not (p.packed and p.state) or (p.numbers and not p.at) then return false end
  for i = 1, math.min(tonumber(p.numbers or 0), #NUMBERS) do
    if not p[NUMBERS[i]] then return false end
  end
  return true
end

-- The short form of a part whose only item waits or runs for the first time: a field of SINGLES.
-- It is '0', or '1' while the item runs; the digest in hexadecimal; then, packed, the part, the key
-- of its record, the time at which it was stored, and its item; then how the text of its record
-- begins and how long the record is kept, if the end of the item is all that ends the batch. A claim
-- and a settle read and write many of these fields with one command. Whatever else changes the part
-- makes it an ordinary hash.
local DIGEST = 12 -- digits

local function of_short_form(text) return cmsgpack.unpack(string.sub(text, DIGEST + 2)) end

local function find_single(handle)
  local text = redis.call('HGET', SINGLES, handle)
  if not text then return nil end
  local packed, home, stamp, body = of_short_form(text)
  local is_running = string.sub(text, 1, 1) == '1'
  local p = { handle = handle, key = root .. 'part/' .. handle, is_short = true, packed = packed,
    home = home, stamp = stamp, state = 'ready', at = is_running and '' or 'line',
    fresh = is_running and 0 or 1, running = is_running and 1 or 0,
    next_chunk = is_running and 1 or 0, staged = 1,
    digest = tonumber(string.sub(text, 2, DIGEST + 1), 16), b0 = body, c0 = '1', l0 = '1' }
  return p
end

-- Make a part in short form an ordinary hash.
local function unfold(p)
  local fields = { 'packed', p.packed, 'home', p.home, 'state', p.state, 'at', p.at,
    'b0', p.b0, 'c0', p.c0, 'l0', p.l0 }
  for _, name in ipairs(NUMBERS) do
    fields[#fields + 1] = name
    fields[#fields + 1] = p[name]
  end
  redis.call('HSET', p.key, unpack(fields))
  redis.call('HDEL', SINGLES, p.handle)
  p.is_short = nil
end

local function find_part(handle)
  if parts[handle] then return parts[handle] end
  local stored = redis.call('HGETALL', root .. 'part/' .. handle)
  local p = { handle = handle, key = root .. 'part/' .. handle }
  for i = 1, #stored, 2 do p[stored[i]] = stored[i + 1] end
  if not stored[1] then p = find_single(handle) or p end
  if not is_whole(p) then return nil end
  for _, name in ipairs(NUMBERS) do p[name] = tonumber(p[name] or 0) end
  p.at = p.at or ''
  p.info = cmsgpack.unpack(p.packed)
  return remember(p)
end

-- The hash with the part's chunks. A small single item is in the part's own hash.
local function chunks_of(p)
  if p.is_short then unfold(p) end
  return p.c0 and p.key or p.key .. '/chunks'
end

local function place_of(chunk, offset) return string.format('%08d:%04d', chunk, offset) end

-- Let the keys of a part that has ended expire.
local function let_expire(p, keep_ms)
  for _, suffix in ipairs(PART_KEYS) do redis.call('PEXPIRE', p.key .. suffix, keep_ms) end
  redis.call('ZADD', KEPT, exactly(now + keep_ms), p.handle)
end

-- Changes of the gauges, which save() writes: one command for all parts of a call.
local tallies = { [DEPTHS] = {}, [CENSUS] = {}, [LANES] = {} }
local lived, ended, aged, ageless = {}, {}, {}, {}

local function count_in(key, field, change)
  if change ~= 0 then tallies[key][field] = (tallies[key][field] or 0) + change end
end

local function save_gauges()
  for key, fields in pairs(tallies) do
    for field, change in pairs(fields) do
      if change ~= 0 and redis.call('HINCRBY', key, field, change) == 0 then
        redis.call('HDEL', key, field)
      end
    end
  end
  call_many('ZADD', LIVE, lived)
  call_many('ZREM', LIVE, ended)
  call_many('ZADD', AGES, aged)
  call_many('ZREM', AGES, ageless)
end

local function keep_late(p, limited, change, is_late)
  local gauge, parts_late = 'delayed', LATE
  if limited then gauge, parts_late = 'delayed_limited', LATE_LIMITED end
  meta[gauge] = meta[gauge] + change
  redis.call(is_late and 'SADD' or 'SREM', parts_late, p.handle)
end

local function keep_gauges(p)
  local was = p.was
  local left = waiting(p)
  local was_ready, is_ready = counts(was), counts(p)
  local before, after = was_ready and was.waiting or 0, is_ready and left or 0
  meta.in_flight = meta.in_flight + p.running - was.running
  meta.waiting = meta.waiting + after - before
  count_in(DEPTHS, p.info[ACTION], after - before)
  if was_ready ~= is_ready then count_in(CENSUS, p.info[PURSE], is_ready and 1 or -1) end
  if IS_LIVE[p.state] and not IS_LIVE[was.state] then
    lived[#lived + 1] = 0
    lived[#lived + 1] = p.handle
  end
  if IS_LIVE[was.state] and not IS_LIVE[p.state] then ended[#ended + 1] = p.handle end
  if before == 0 and after > 0 then
    aged[#aged + 1] = math.max(p.stamp, start_ms(p))
    aged[#aged + 1] = p.handle
  elseif before > 0 and after == 0 then
    ageless[#ageless + 1] = p.handle
  end
  local late_before, late_after = was_ready and was.delayed or 0, is_ready and p.delayed or 0
  if was.limited ~= p.info[LIMITED] then
    keep_late(p, was.limited, -late_before, false)
    keep_late(p, p.info[LIMITED], late_after, late_after > 0)
  elseif late_before ~= late_after then
    keep_late(p, was.limited, late_after - late_before, late_after > 0)
  end
  meta.limited = meta.limited + (p.info[LIMITED] and after or 0) - (was.limited and before or 0)
  count_in(LANES, p.info[LANE], (p.info[LIMITED] and p.at == 'line' and left or 0)
    - (was.limited and was.at == 'line' and was.waiting or 0))
end

local at_save = {} -- what the files below also write when a call ends
local new_singles, ended_singles = {}, {} -- parts in short form: fields and values, and handles
at_save[1] = function()
  call_many('HSET', SINGLES, new_singles)
  call_many('HDEL', SINGLES, ended_singles)
end

local function save()
  for _, write in ipairs(at_save) do write() end
  for _, p in pairs(parts) do
    if p.concluded then -- a batch of one item: its record says all about its end
      keep_gauges(p)
      if p.is_short then redis.call('HDEL', SINGLES, p.handle)
      else redis.call('UNLINK', p.key, p.key .. '/chunks', p.key .. '/notes', p.key .. '/record') end
    elseif not p.gone then
      local fields = {}
      for _, name in ipairs(NUMBERS) do
        if p[name] ~= p.was[name] then
          fields[#fields + 1] = name
          fields[#fields + 1] = p[name]
        end
      end
      if p.state ~= p.was.state then fields[#fields + 1] = 'state'; fields[#fields + 1] = p.state end
      if p.packed ~= p.was.packed then fields[#fields + 1] = 'packed'; fields[#fields + 1] = p.packed end
      if p.at ~= p.was.at then fields[#fields + 1] = 'at'; fields[#fields + 1] = p.at end
      if #fields > 0 then
        keep_gauges(p)
        if p.is_short then unfold(p) else redis.call('HSET', p.key, unpack(fields)) end
      end
    end
  end
  save_gauges()
  save_numbers()
end
