-- place_hold: now, limit, server ('' for this server's own name; tests pass another, with a '+' if
-- the server was promoted), bell channel,
-- holder, turn, lease_ms, bell, the server that the caller knows, a packed rule { running (-1: any),
-- windows { name, count, period_ms, midnights } }, packed asks { handle, key, running, fresh,
-- started, want }, incarnation and version of the rule.
-- KEYS: the limit's hash, twice. Records what the holder says, and grants what is free by the newest
-- rule that a call had.
-- Returns {server, quiet_ms, time to remember, 1 if the home is new, and for each ask: places, others
-- wait, wait_ms}. A home that is new records nothing.
local limit, server, channel, name = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local turn, lease_ms, bell = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local known, rule, asks = ARGV[9], cmsgpack.unpack(ARGV[10]), cmsgpack.unpack(ARGV[11])
local incarnation, version = ARGV[12], tonumber(ARGV[13])
-- Whether this server may have replaced one that had the home.
local function is_successor()
  if ARGV[3] ~= '' then return string.find(server, '+', 1, true) end
  return string.find(redis.call('INFO', 'replication'), 'second_repl_offset:%d') -- never: -1
end

if server == '' then
  server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
end

home.lease_ms = math.max(home.lease_ms, lease_ms)
local is_lost = known ~= '' and home.server == ''
local is_replaced = home.server ~= '' and home.server ~= server
local is_late_news = known ~= '' and known ~= server and home.rebuilt ~= server
local is_unknown = home.server == '' and is_successor()
if is_lost or is_replaced or is_late_news or is_unknown then
  home.quiet_ms, home.rebuilt = now + home.lease_ms, server
end
home.server = server
local is_new = home.confirmed ~= server
local grants = now >= home.quiet_ms

-- The same as Rule.replaces().
local function is_newest()
  if version == 0 then return home.ruled == 0 end
  return home.ruled_by ~= incarnation or version >= home.ruled
end

if is_newest() then
  if version > 0 and not is_new and (home.rule ~= ARGV[10] or home.ruled ~= version
      or home.ruled_by ~= incarnation) then
    redis.call('HSET', KEYS[1], 'rule', ARGV[10], 'ruled_by', incarnation, 'ruled', version)
  end
else
  local midnights = {}
  for _, window in ipairs(rule[2]) do midnights[window[1]] = window[4] end
  rule = cmsgpack.unpack(home.rule)
  for _, window in ipairs(rule[2]) do window[4] = midnights[window[1]] or window[4] end
end
local running_max, windows = rule[1], rule[2]
local keep_ms = 2 * home.lease_ms
for _, window in ipairs(windows) do keep_ms = math.max(keep_ms, 2 * window[3] + home.lease_ms) end

local function begin_of(window)
  if #window[4] == 0 then return now - window[3] end
  local begin = -math.huge
  for _, midnight in ipairs(window[4]) do
    if midnight <= now then begin = math.max(begin, midnight) end
  end
  return begin
end

local function note(key, started)
  local kept = {}
  for _, window in ipairs(windows) do
    local by_day, begin = #window[4] > 0, begin_of(window)
    local found = key.starts[window[1]] or {}
    local left = {}
    for _, each in ipairs(found) do
      if each[2] > begin or by_day then left[#left + 1] = each end
    end
    if by_day and #left > 0 and left[#left][1] < begin then left = {} end
    local last = left[#left]
    if started > 0 then
      if last and (by_day or now - last[1] < window[3] / MERGED) then
        last[2], last[3] = math.max(now, last[2]), last[3] + started
      else
        left[#left + 1] = { now, now, started }
      end
    end
    kept[window[1]] = left
  end
  for gone in pairs(key.starts) do
    if not kept[gone] then key.dropped[#key.dropped + 1] = 's' .. gone end
  end
  key.starts = kept
end

local function expire(key)
  local unused, gone = 0, {}
  for holder_name, holder in pairs(key.holders) do
    if holder.until_ms <= now then gone[#gone + 1] = holder_name end
  end
  for _, holder_name in ipairs(gone) do
    unused = unused + key.holders[holder_name].fresh
    key.dropped[#key.dropped + 1] = 'h' .. holder_name
    key.holders[holder_name] = nil
  end
  if #gone > 0 then note(key, unused) end
end

local function free(key)
  local left, taken, fresh = PLACES_MAX, 0, 0
  for _, holder in pairs(key.holders) do
    taken, fresh = taken + held(holder), fresh + holder.fresh
  end
  if running_max >= 0 then left = math.min(left, running_max - taken) end
  for _, window in ipairs(windows) do
    local used = 0
    for _, each in ipairs(key.starts[window[1]] or {}) do used = used + each[3] end
    left = math.min(left, window[2] - used - fresh)
  end
  return left
end

local function process_of(holder_name) return string.match(holder_name, '^(.*)/[^/]*/[^/]*$') or holder_name end

-- Processes that get no offers, as in LimitHome: by name, the end of the lease that is not renewed.
local process = process_of(name)
local silent = home.silent == '' and {} or cmsgpack.unpack(home.silent)
silent[process] = nil
for gone, until_ms in pairs(silent) do
  if until_ms <= now then silent[gone] = nil end
end

local function is_waiting(holder) return holder.want > 0 and not silent[process_of(holder.name)] end

local function next_in_line(key)
  key.line = key.line + 1
  return key.line
end

local function deal(key, mine)
  local left, granted, line = free(key), 0, {}
  for _, holder in pairs(key.holders) do
    if is_waiting(holder) then line[#line + 1] = holder end
  end
  table.sort(line, function(one, other) return one.line < other.line end)
  for _, holder in ipairs(line) do
    if left <= 0 then break end
    local count = math.min(holder.want, left)
    if not is_waiting(holder) then -- since an offer to another holder of the process
    elseif holder == mine then
      granted = count
      mine.fresh, mine.want, mine.offer_ms = mine.fresh + count, mine.want - count, 0
      mine.line = mine.want > 0 and next_in_line(key) or 0
      left = left - count
    elseif holder.offer_ms == 0 then
      holder.offer_ms = now + OFFER_MS
      redis.call('PUBLISH', channel, cmsgpack.pack({ holder.bell, limit, key.name }))
      left = left - count
    elseif holder.offer_ms <= now then -- it did not come, and may be dead
      holder.offer_ms, holder.line, holder.want = 0, 0, 0
      if process_of(holder.name) ~= process then silent[process_of(holder.name)] = holder.until_ms end
    else
      left = left - count
    end
    key.changed[holder] = true
  end
  return granted
end

local function wait_ms(key, mine)
  local due = math.huge
  for _, holder in pairs(key.holders) do
    if holder ~= mine then
      if held(holder) > 0 then due = math.min(due, holder.until_ms) end
      if holder.offer_ms > now then due = math.min(due, holder.offer_ms) end
    end
  end
  for _, window in ipairs(windows) do
    if #window[4] > 0 then
      for _, midnight in ipairs(window[4]) do
        if midnight > now then due = math.min(due, midnight) end
      end
    else
      local first = (key.starts[window[1]] or {})[1]
      if first then due = math.min(due, first[2] + window[3]) end
    end
  end
  if due == math.huge then due = mine.until_ms end
  return math.max(due - now, 0)
end

local function hold(ask)
  local key = find_key(ask[1])
  key.name = ask[2]
  expire(key)
  local mine, places, others, wait = key.holders[name], 0, 0, 0
  if not mine or mine.turn < turn or turn == 0 then -- 0: the calls have no order
    local is_known = mine ~= nil
    note(key, ask[5])
    if not mine then
      mine = { name = name, line = 0, offer_ms = 0 }
      key.holders[name] = mine
    end
    mine.turn, mine.until_ms, mine.bell = turn, now + lease_ms, bell
    mine.running, mine.fresh, mine.want = ask[3], ask[4], ask[6]
    if mine.want == 0 then mine.line, mine.offer_ms = 0, 0
    elseif mine.line == 0 then mine.line = next_in_line(key) end
    key.changed[mine] = true
    if grants and not is_known and ask[4] > 0 then -- its lease had ended: others may have these
      mine.fresh = 0
      mine.fresh = math.max(math.min(ask[4], free(key)), 0)
    end
    local taken = ask[4] - mine.fresh
    if grants then places = deal(key, mine) end
    places = places - taken
    for _, holder in pairs(key.holders) do
      if holder ~= mine and is_waiting(holder) then others = 1 end
    end
    if free(key) < 0 then others = 1 end -- the limit was lowered
    if mine.want > 0 then wait = wait_ms(key, mine) end
  end
  keep_key(key, keep_ms)
  return places, others, wait
end

local answer = { server, exactly(math.max(home.quiet_ms - now, 0)), exactly(told), is_new and 1 or 0 }
for _, ask in ipairs(is_new and {} or asks) do
  local places, others, wait = hold(ask)
  answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = places, others, exactly(wait)
end
redis.call('PEXPIRE', LISTED, KEEP_MS)
if not is_new then home.silent = next(silent) and cmsgpack.pack(silent) or '' end
keep_home()
return answer
