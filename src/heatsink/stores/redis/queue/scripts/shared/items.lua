-- Outcomes of items, and the leases that hold them.
-- Mark the items at `offsets` of the slice as done; without `offsets`, all of them.
local function finish(p, lease, count, offsets)
  p.running, p.done = p.running - count, p.done + count
  meta.done = meta.done + count
  if p.home then return end -- put() frees it
  local chunks, number = chunks_of(p), lease.chunk
  if redis.call('HINCRBY', chunks, 'l' .. number, -count) <= 0 then
    redis.call('HDEL', chunks, 'l' .. number)
    if not p.info[KEEPS_ITEMS] then redis.call('HDEL', chunks, 'c' .. number, 'b' .. number) end
  end
  if lease.fresh or redis.call('EXISTS', p.key .. '/notes') == 0 then return end
  local notes = {}
  for i = 1, count do
    local place = place_of(number, lease.start + (offsets and offsets[i] or i - 1))
    notes[2 * i - 1], notes[2 * i] = 't' .. place, 'l' .. place
  end
  call_many('HDEL', p.key .. '/notes', notes)
end

-- Keep the results of the items that `marks` marks as done for the first time. A result is stored
-- as its lap, a colon, and the encoded value.
local function keep_results(p, lease, marks, results) -- {offset, value}…
  if (p.info[RESULT_BYTES] or 0) == 0 then return end
  local words = {}
  for _, result in ipairs(results) do
    local i = result[1] + 1
    if string.sub(lease.marks, i, i) == '.' and string.sub(marks, i, i) == 'd' then
      words[#words + 1] = place_of(lease.chunk, lease.start + result[1])
      words[#words + 1] = p.lap .. ':' .. result[2]
    end
  end
  call_many('HSET', p.key .. '/results', words)
end

local function fail(p, place, reason)
  p.running, p.failed = p.running - 1, p.failed + 1
  meta.failed = meta.failed + 1
  local notes = p.key .. '/notes'
  local tries = tonumber(redis.call('HGET', notes, 't' .. place) or 0) + 1
  redis.call('HDEL', notes, 't' .. place, 'l' .. place)
  redis.call('HSET', p.key .. '/reasons', place, cmsgpack.pack({ tries, reason }))
  redis.call('ZADD', p.key .. '/failures', 0, place)
end

local function delay(p, places, tried)
  local count = #places / 2
  p.running = p.running - count
  if p.state == 'cancelled' then
    p.cancelled = p.cancelled + count
    return
  end
  p.delayed = p.delayed + count
  call_many('ZADD', p.key .. '/delayed', places)
  for _, place in ipairs(tried) do redis.call('HINCRBY', p.key .. '/notes', 't' .. place, 1) end
end

-- Items of a fresh slice were never lost before, so one HSET notes all of them.
local function lose_fresh(p, places)
  local notes = {}
  for _, place in ipairs(places) do
    notes[#notes + 1] = 'l' .. place
    notes[#notes + 1] = 1
  end
  call_many('HSET', p.key .. '/notes', notes)
  return places
end

local function lose_again(p, places)
  local suspects = {}
  for _, place in ipairs(places) do
    local losses = redis.call('HINCRBY', p.key .. '/notes', 'l' .. place, 1)
    if losses >= LOSSES_MAX then
      fail(p, place, 'the worker died ' .. losses .. ' times while the item ran')
    else
      suspects[#suspects + 1] = place
    end
  end
  return suspects
end

local function lose(p, places, fresh)
  if p.state == 'cancelled' then
    p.running, p.cancelled = p.running - #places, p.cancelled + #places
    return
  end
  local suspects = (fresh and lose_fresh or lose_again)(p, places)
  p.running, p.suspects = p.running - #suspects, p.suspects + #suspects
  call_many('RPUSH', p.key .. '/suspects', suspects)
end

-- Leases ---------------------------------------------------------------------------------------

-- A call reads many leases at once, and save_leases() writes all that changed.
local leases, kept_leases, expiring, forgotten, is_forgotten = {}, {}, {}, {}, {}
local HANDLE = 24 -- digits

local function read_leases(attempts)
  for first = 1, #attempts, 1000 do
    local last = math.min(first + 999, #attempts)
    local found = redis.call('HMGET', LEASES, unpack(attempts, first, last))
    for i = 1, last - first + 1 do leases[attempts[first + i - 1]] = found[i] end
  end
end

local function find_lease(attempt)
  if is_forgotten[attempt] then return nil end
  local lease = leases[attempt]
  if type(lease) == 'table' then return lease end
  if lease == nil then lease = redis.call('HGET', LEASES, attempt) end
  if not lease then return nil end
  if string.byte(lease) < 128 then -- of a part in short form: its handle and the cost
    return { attempt = attempt, handle = string.sub(lease, 1, HANDLE), chunk = 0, start = 0,
      marks = '.', cost_us = tonumber(string.sub(lease, HANDLE + 1)), suspect = false,
      fresh = true }
  end
  local handle, chunk, start, marks, cost_us, suspect, fresh = unpack(cmsgpack.unpack(lease))
  return { attempt = attempt, handle = handle, chunk = chunk, start = start, marks = marks,
    cost_us = cost_us, suspect = suspect, fresh = fresh }
end

local function keep_lease(lease)
  leases[lease.attempt], kept_leases[lease.attempt], is_forgotten[lease.attempt] = lease, lease
end

local function let_lease_expire(lease, at_ms)
  expiring[#expiring + 1], expiring[#expiring + 2] = at_ms, lease.attempt
end

local function forget_lease(lease)
  if not is_forgotten[lease.attempt] then forgotten[#forgotten + 1] = lease.attempt end
  is_forgotten[lease.attempt] = true
  kept_leases[lease.attempt] = nil
  if lease.suspect then meta.suspects = meta.suspects - 1 end
end

-- A claim that is repeated under its name may lease items under a name that it has just forgotten.
local function save_leases()
  call_many('HDEL', LEASES, forgotten)
  call_many('ZREM', EXPIRY, forgotten)
  local words = {}
  for attempt, lease in pairs(kept_leases) do
    words[#words + 1] = attempt
    words[#words + 1] = type(lease) == 'string' and lease or cmsgpack.pack({ lease.handle,
      lease.chunk, lease.start, lease.marks, lease.cost_us, lease.suspect, lease.fresh })
  end
  call_many('HSET', LEASES, words)
  call_many('ZADD', EXPIRY, expiring)
  kept_leases, expiring, forgotten = {}, {}, {}
end
at_save[#at_save + 1] = save_leases

local function apply_marks(p, lease, marks, setbacks)
  local known, settled, started, done = lease.marks, 0, 0, {}
  local merged, places, tried = {}, {}, {}
  for i = 1, #marks do
    local mark, old = string.sub(marks, i, i), string.sub(known, i, i)
    merged[i] = old == '.' and mark or old
    if old == '.' and mark ~= '.' then
      settled = settled + 1
      if mark ~= 'b' then started = started + 1 end
      local place = place_of(lease.chunk, lease.start + i - 1)
      local why = setbacks[i - 1] or { i - 1, '', 0, true }
      if mark == 'd' then
        done[#done + 1] = i - 1
      elseif mark == 'f' then
        fail(p, place, why[2])
      else
        places[#places + 1] = now + why[3]
        places[#places + 1] = place
        if mark == 'r' then
          meta.retried = meta.retried + 1
          if why[4] then tried[#tried + 1] = place end
        end
      end
    end
  end
  if #done > 0 then finish(p, lease, #done, done) end
  if #places > 0 then delay(p, places, tried) end
  lease.marks = table.concat(merged)
  return settled, started
end

local learned = {}
at_save[#at_save + 1] = function()
  for action, cost_us in pairs(learned) do redis.call('HSET', SERVICE, action, cost_us) end
end

local function learn_cost(p, lease, used_us, settled, started)
  charge(p, used_us - lease.cost_us * settled)
  meta.used_us = meta.used_us + used_us
  if started == 0 then return end
  local action, each = p.info[ACTION], used_us / started
  local known = learned[action] or tonumber(redis.call('HGET', SERVICE, action) or nil)
  costs[action] = known and known + SERVICE_WEIGHT * (each - known) or each
  learned[action] = costs[action]
end

local function settle(attempt, marks, used_us, setbacks, results)
  local lease = find_lease(attempt)
  if not lease or #lease.marks ~= #marks then return false end
  local p = find_part(lease.handle)
  if not p then
    forget_lease(lease)
    return false
  end
  if results then keep_results(p, lease, marks, results) end
  local settled, started
  if not string.find(marks, '[^d]') and not string.find(lease.marks, '[^.]') then
    settled, started = #marks, #marks
    finish(p, lease, #marks)
    lease.marks = marks
  else
    local by_offset = {}
    for _, setback in ipairs(setbacks) do by_offset[setback[1]] = setback end
    settled, started = apply_marks(p, lease, marks, by_offset)
  end
  learn_cost(p, lease, used_us, settled, started)
  if string.find(lease.marks, '.', 1, true) then keep_lease(lease) else forget_lease(lease) end
  put(p)
  return true
end

-- Settle the done item of a single whose part and lease are in short form. Returns false, and changes
-- nothing, if more is to be done for the end of its batch.
local function settle_single(single, used_us)
  local home = single.home
  local p = { handle = single.handle, home = home, info = cmsgpack.unpack(single.packed), lap = 0 }
  local opening = single.opening
  if not (opening and end_single(home, single.record, opening, single.keep_ms) or end_record(p)) then
    return false
  end
  ended_singles[#ended_singles + 1] = p.handle
  ended[#ended + 1] = p.handle
  meta.done, meta.in_flight = meta.done + 1, meta.in_flight - 1
  count_in(CENSUS, p.info[PURSE], -1)
  learn_cost(p, single.lease, used_us, 1, 1)
  forget_lease(single.lease)
  retire_from(line_of(p), p)
  return true
end
