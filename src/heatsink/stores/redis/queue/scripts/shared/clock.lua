-- The slot's own time in ms: the same as primitives/slot_time.py, which explains it.
-- KEYS[2] is the hash that holds the slot's time in its field `time`. ARGV[1] has four numbers:
--   the server's time (0: call TIME; tests pass their own),
--   the caller's wall clock,
--   the time since the caller started,
--   the slot's time as the caller estimates it (0: unknown).
-- Scripts of partitions get a fifth number, the version of the plan that put the partition here.
-- Scripts return `told`, the time that a caller may remember.
local STEP_MS, AGREE_MS, BELIEVE_MS = 2000, 5000, 10000

local function exactly(number) return string.format('%.17g', number) end

local now, told, time, since
local late = 0 -- a gap in the clock that was doubted and is accepted in this call
do
  local words = {}
  for word in string.gmatch(ARGV[1], '%S+') do words[#words + 1] = tonumber(word) end
  local server, wall, up, due
  server, wall, up, due, since = unpack(words)
  if server == 0 then
    local clock = redis.call('TIME')
    server = clock[1] * 1000 + math.floor(clock[2] / 1000)
  end

  local own, gap, waited, before = server, 0, 0, 0
  local known = redis.call('HGET', KEYS[2], 'time')
  if known then
    local server_was, wall_was, gap_was
    server_was, own, wall_was, gap_was, waited, before = unpack(cmsgpack.unpack(known))
    local step = server - server_was
    gap = gap_was
    if step >= 0 and step <= STEP_MS then own = own + step else gap = gap + step end
    if gap <= STEP_MS then
      gap = 0
    else
      if gap_was == 0 then waited, before = 0, wall_was
      else waited = waited + math.min(math.max(step, 0), STEP_MS) end
      local is_true
      if due ~= 0 then
        is_true = own + gap <= due + STEP_MS
        if not is_true then gap = 0 end
      else
        local knows = up >= gap or waited >= STEP_MS
        is_true = knows and math.abs(wall - before - gap - waited) <= AGREE_MS
          or waited >= BELIEVE_MS
      end
      if is_true then own, late, gap = own + gap, gap_was > 0 and gap or 0, 0 end
    end
    if gap == 0 then waited, before = 0, 0 end
  end
  now, told = own, gap == 0 and own or 0
  time = cmsgpack.pack({ server, own, wall, gap, waited, before })
end

-- Called by scripts that write; scripts that only read do not advance the slot's time.
local function keep_time() redis.call('HSET', KEYS[2], 'time', time) end

-- Shift the times in a sorted set by a gap that was accepted late, so that leases and the like that
-- were granted during the doubt keep their full length.
local function move_along(key, from)
  if late == 0 then return end
  local found = redis.call('ZRANGEBYSCORE', key, from, '+inf', 'WITHSCORES')
  for i = 1, #found, 2 do redis.call('ZADD', key, found[i + 1] + late, found[i]) end
end

local function still_due() return '(' .. exactly(now - late) end
