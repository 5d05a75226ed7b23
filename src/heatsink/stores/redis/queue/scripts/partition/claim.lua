-- claim: now, owner, attempt, want, lease_ms, packed {line, allowed} pairs, packed attempts whose
-- reply the caller never received, incarnation and version of the controls that the caller knows,
-- how many items a slice may have (0: any number), and a bell ("": none).
-- Leases items to the attempt, unless the partition has lost these controls. A claim with a bell that
-- finds nothing becomes the standing claim, which accept.lua carries out.
-- Returns {owned, time, more, wake_ms, lanes, parts, bodies, slices, 1 unless control() is needed, 1 if
-- this is the standing claim now}. Slices refer to parts and bodies by number, so that a shared one is
-- sent once.
begin()
local LANES_MAX, AHEAD_MAX, PAUSED_MAX = 1000, 100, 500
local owner, attempt, want, lease_ms = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local each_max = tonumber(ARGV[10]) > 0 and tonumber(ARGV[10]) or math.huge
if meta.owner ~= owner or now >= meta.until_ms then
  return { 0, exactly(told) }
end
if meta.standing then meta.standing = '' end

local infos, info_of, bodies, body_of, slices, count_of, paused = {}, {}, {}, {}, {}, 0, 0
local texts = {} -- chunks that were read

local function text_of(p, chunk)
  local name = p.handle .. chunk
  if p.c0 and chunk == 0 then return p.b0 end
  texts[name] = texts[name] or redis.call('HGET', chunks_of(p), 'b' .. chunk)
  return texts[name]
end

local function take_back(name)
  local number = 0
  local lease = find_lease(name .. ':0')
  while lease do
    settle(lease.attempt, string.rep('b', #lease.marks), 0, {})
    number = number + 1
    lease = find_lease(name .. ':' .. number)
  end
  local handed_over = meta.handed_over or ''
  if string.sub(handed_over, 1, #name + 1) == name .. ':' then settle(handed_over, 'b', 0, {}) end
end

local function expire()
  local late = redis.call('ZRANGEBYSCORE', EXPIRY, '-inf', now, 'LIMIT', 0, EXPIRE_MAX)
  for _, name in ipairs(late) do
    local lease = find_lease(name) or { attempt = name, handle = '', marks = '' }
    local p, places = find_part(lease.handle), {}
    forget_lease(lease)
    for i = 1, p and #lease.marks or 0 do
      if string.sub(lease.marks, i, i) == '.' then
        places[#places + 1] = place_of(lease.chunk, lease.start + i - 1)
      end
    end
    meta.expired = meta.expired + #places
    if p then
      lose(p, places, lease.fresh)
      put(p)
    end
  end
end

local function wake()
  local due = redis.call('ZRANGEBYSCORE', SLEEPING, '-inf', now, 'LIMIT', 0, WAKE_MAX)
  for _, handle in ipairs(due) do
    local p = find_part(handle)
    if p then put(p) else redis.call('ZREM', SLEEPING, handle) end
  end
end

local find_items
do -- a script has 200 local variables at most
  local function suspects_may(p)
    if p.suspects == 0 then return false end
    local first = redis.call('LINDEX', p.key .. '/suspects', 0)
    local losses = tonumber(redis.call('HGET', p.key .. '/notes', 'l' .. first) or 0)
    return (SUSPECTS_MAX[losses] or 1) > meta.suspects
  end

  local function again(place, suspect)
    local chunk, offset = tonumber(string.sub(place, 1, 8)), tonumber(string.sub(place, 10))
    return { chunk = chunk, start = offset, count = 1, suspect = suspect, fresh = false, tries = 0 }
  end

  -- Which of these places have as many tries as the slice's first one, and never lost a worker.
  local function alike(p, found, places)
    local same, words = {}, {}
    for i, place in ipairs(places) do
      words[2 * i - 1], words[2 * i] = 't' .. place, 'l' .. place
    end
    local notes = redis.call('HMGET', p.key .. '/notes', unpack(words))
    for i = 1, #places do
      same[i] = tonumber(notes[2 * i - 1] or 0) == found.tries and not notes[2 * i]
    end
    return same
  end

  -- Extend a slice by the places after it, up to `most`, as long as they are due and alike.
  local function add_riders(p, found, most)
    local places = {}
    for i = 1, most do places[i] = place_of(found.chunk, found.start + found.count + i - 1) end
    local dues = redis.call('ZMSCORE', p.key .. '/delayed', unpack(places))
    if not dues[1] then return false end
    local same = found.noted and alike(p, found, places)
    for i = 1, most do
      local rides = dues[i] and tonumber(dues[i]) <= now and (not same or same[i])
      if not rides then return false end
      found.count = found.count + 1
      found.places[found.count] = places[i]
    end
    return true
  end

  -- Take a due item, with the due items after it that never lost a worker. Mostly there are few such
  -- items, so check one at first, and then four times as many with each step.
  local function take_due(p, first, most)
    local found, step, alone = again(first, false), 1, false
    found.places = { first }
    found.noted = redis.call('EXISTS', p.key .. '/notes') == 1
    if found.noted then
      local notes = redis.call('HMGET', p.key .. '/notes', 't' .. first, 'l' .. first)
      found.tries, alone = tonumber(notes[1] or 0), notes[2]
    end
    while not alone and found.count < most do
      alone = not add_riders(p, found, math.min(step, most - found.count))
      step = math.min(step * 4, 256)
    end
    call_many('ZREM', p.key .. '/delayed', found.places)
    p.delayed = p.delayed - found.count
    return found
  end

  local function take_suspect(p)
    p.suspects = p.suspects - 1
    local place = redis.call('LPOP', p.key .. '/suspects')
    local found = again(place, true)
    found.tries = tonumber(redis.call('HGET', p.key .. '/notes', 't' .. place) or 0)
    return found
  end

  -- Skip missing chunks: their items are lost and must not hold up the others.
  local function skip_gaps(p)
    while p.fresh > 0 do
      local size = p.next_chunk == 0 and p.c0
        or redis.call('HGET', chunks_of(p), 'c' .. p.next_chunk)
      if size and text_of(p, p.next_chunk) then return tonumber(size) end
      if p.next_chunk >= p.staged then -- no chunk is left: the rest is lost
        p.lost, p.fresh = p.lost + p.fresh, 0
        return nil
      end
      local gap = { p.next_chunk, p.next_offset, -1 }
      redis.call('RPUSH', p.key .. '/missing', cmsgpack.pack(gap))
      p.next_chunk, p.next_offset = p.next_chunk + 1, 0
    end
  end

  local function take_fresh(p, most)
    local size = skip_gaps(p)
    if not size then return nil end
    local count = math.min(most, size - p.next_offset)
    local found = { chunk = p.next_chunk, start = p.next_offset, count = count, suspect = false,
      fresh = true, tries = 0 }
    p.fresh, p.next_offset = p.fresh - count, p.next_offset + count
    if p.next_offset == size then p.next_chunk, p.next_offset = p.next_chunk + 1, 0 end
    return found
  end

  -- Delayed items that are due first, then suspects, then fresh items.
  local function next_items(p, most)
    if p.delayed > 0 then
      local due = redis.call('ZRANGE', p.key .. '/delayed', 0, 0, 'WITHSCORES')
      if tonumber(due[2]) <= now then return take_due(p, due[1], most) end
    end
    if suspects_may(p) then return take_suspect(p) end
    return p.fresh > 0 and take_fresh(p, most) or nil
  end

  function find_items(p, most)
    local found = next_items(p, most)
    while found and not text_of(p, found.chunk) do
      p.lost = p.lost + found.count
      local gap = { found.chunk, found.start, found.count }
      redis.call('RPUSH', p.key .. '/missing', cmsgpack.pack(gap))
      found = next_items(p, most)
    end
    return found
  end
end

local function add_slice(info, body, start, count, tries)
  local last = #slices
  slices[last + 1], slices[last + 2], slices[last + 3] = info, body, start
  slices[last + 4], slices[last + 5] = count, tries
  count_of = count_of + 1
end

local function hand_out(p, found)
  if not info_of[p.handle] then
    infos[#infos + 1] = p.packed
    info_of[p.handle] = #infos - 1
  end
  local name = p.handle .. found.chunk
  if not body_of[name] then
    bodies[#bodies + 1] = text_of(p, found.chunk)
    body_of[name] = #bodies - 1
  end
  add_slice(info_of[p.handle], body_of[name], found.start, found.count, found.tries)
end

local function take(p, most)
  if is_paused(p) then -- no sweep has found it yet
    put(p)
    paused = paused + 1
    return 0
  end
  local found = find_items(p, math.min(most, each_max))
  if not found then
    if p.suspects > 0 then sleep_until(p, now + SUSPECT_PAUSE_MS) else put(p) end
    return 0
  end
  local cost_us = cost_of(p)
  local lease = { attempt = attempt .. ':' .. count_of, handle = p.handle, chunk = found.chunk,
    start = found.start, marks = string.rep('.', found.count), cost_us = cost_us,
    suspect = found.suspect, fresh = found.fresh }
  keep_lease(lease)
  let_lease_expire(lease, now + lease_ms)
  if found.suspect then meta.suspects = meta.suspects + 1 end
  p.running = p.running + found.count
  meta.claimed = meta.claimed + found.count
  hand_out(p, found)
  charge(p, cost_us * found.count)
  put(p)
  return found.count
end

local cost_texts, until_text = {}, exactly(now + lease_ms)

-- Lease the item of a part in short form. Returns false if its tenant or its action is paused.
local function take_single(handle, text)
  local packed, _, _, body = of_short_form(text)
  local p = { handle = handle, info = cmsgpack.unpack(packed) }
  if is_paused(p) then return false end
  local cost_us, name = cost_of(p), attempt .. ':' .. count_of
  cost_texts[cost_us] = cost_texts[cost_us] or exactly(cost_us)
  kept_leases[name] = handle .. cost_texts[cost_us]
  expiring[#expiring + 1], expiring[#expiring + 2] = until_text, name
  new_singles[#new_singles + 1] = handle
  new_singles[#new_singles + 1] = '1' .. string.sub(text, 2)
  ageless[#ageless + 1] = handle
  meta.claimed, meta.in_flight = meta.claimed + 1, meta.in_flight + 1
  meta.waiting = meta.waiting - 1
  count_in(DEPTHS, p.info[ACTION], -1)
  infos[#infos + 1], bodies[#bodies + 1] = packed, body
  add_slice(#infos - 1, #bodies - 1, 0, 1, 0)
  charge(p, cost_us)
  return p
end

local function serve_lane(line, allowed)
  while allowed > 0 and paused < PAUSED_MAX do
    local first = redis.call('ZRANGE', root .. 'line/' .. line, 0, 0)[1]
    if not first then return end
    local p = find_part(first)
    if p then allowed = allowed - take(p, allowed)
    else redis.call('ZREM', root .. 'line/' .. line, first) end
  end
end

local function is_first(purse, second, second_time)
  if not (purse and purse.active) then return false end
  if not second or purse.time < second_time then return true end
  return purse.time == second_time and purse.name < second
end

-- The parts at the head of a line: their handles, and the short forms of those that have one.
local function head_of(line)
  local handles = redis.call('ZRANGE', line, 0, math.min(want, AHEAD_MAX) - 1)
  return handles, handles[1] and redis.call('HMGET', SINGLES, unpack(handles)) or {}
end

-- Serve the parts at the head of a tenant's line, as long as the tenant is the first one. Parts in
-- short form leave the line together.
local function serve_first(name, second, second_time)
  local line, left, single = root .. 'line/' .. name, {}, nil
  local handles, texts = head_of(line)

  local function let_leave()
    if not left[1] then return end
    leave_line(line, left)
    retire_from(line, single)
    left = {}
  end

  for i, handle in ipairs(handles) do
    local p = texts[i] and not parts[handle] and take_single(handle, texts[i])
    if p then
      want, single, left[#left + 1] = want - 1, p, handle
      if i == #handles then let_leave() end
    else
      let_leave()
      p = find_part(handle)
      if not p then
        leave_line(line, { handle })
        break
      end
      local quantum = math.max(1, math.floor(QUANTUM_US / math.max(cost_of(p), 1)))
      want = want - take(p, math.min(want, quantum))
    end
    if paused >= PAUSED_MAX then want = 0 end
    local purse = purses[name]
    if want <= 0 or p.at == 'line' or not is_first(purse, second, second_time) then
      let_leave()
      return
    end
    meta.virtual = math.max(meta.virtual, purse.time)
  end
  -- the line may be empty now, or was empty before
  if is_empty[line] == nil then is_empty[line] = redis.call('EXISTS', line) == 0 end
  if is_empty[line] then redis.call('ZREM', TENANTS, name) end
end

local has_more -- tenants with parts to serve; nil: not known
local function serve_tenants()
  while want > 0 do
    save_purses()
    local first = redis.call('ZRANGE', TENANTS, 0, 1, 'WITHSCORES')
    if not first[1] then
      has_more = 0
      return
    end
    meta.virtual = math.max(meta.virtual, tonumber(first[2]))
    serve_first(first[1], first[3], tonumber(first[4] or nil))
  end
end

-- The same as Controls.replaces().
local function has_lost_controls(incarnation, version)
  return version > 0 and (meta.ruled_by ~= incarnation or version > meta.ruled)
end

local function wake_ms()
  local due
  for _, key in ipairs({ EXPIRY, SLEEPING }) do
    local first = tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or nil)
    if first and (not due or first < due) then due = first end
  end
  return due and math.max(math.floor(due - now), 0) or -1
end

local function lanes()
  local count = redis.call('HLEN', LANES)
  if count == 0 then return {} end
  if count <= LANES_MAX then return redis.call('HGETALL', LANES) end
  return redis.call('HRANDFIELD', LANES, LANES_MAX, 'WITHVALUES')
end

for _, name in ipairs(cmsgpack.unpack(ARGV[7])) do take_back(name) end
save_leases() -- since expire() reads which leases there are
expire()
wake()
local is_lost = has_lost_controls(ARGV[8], tonumber(ARGV[9]))
if not is_lost and not find_lease(attempt .. ':0') then -- else this call was delivered twice
  for _, grant in ipairs(cmsgpack.unpack(ARGV[6])) do serve_lane(grant[1], grant[2]) end
  serve_tenants()
end
has_more = has_more or redis.call('EXISTS', TENANTS)
local is_controlled = not (is_lost or meta.sweep)
local finds_nothing = want > 0 and count_of == 0 and has_more == 0
local stands = ARGV[11] ~= '' and finds_nothing and is_controlled and told ~= 0
if stands then meta.standing = cmsgpack.pack({ owner, attempt, lease_ms, ARGV[11] }) end
save()
return { 1, exactly(told), has_more, wake_ms(), lanes(), infos, bodies, slices,
  is_controlled and 1 or 0, stands and 1 or 0 }
