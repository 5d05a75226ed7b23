-- control: now, incarnation and version of the controls, parts per call, then fields and values of
-- RULES. Follows these controls unless the partition follows newer ones, and moves parts into or out
-- of the lines. Returns 1 if another call is needed.
begin()
local incarnation, version, left = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

-- The handles of live parts up to meta.sweep were looked at: '-' is before them all, '+' behind.
local function sweep_lines()
  if meta.sweep == '+' then
    meta.sweep = nil
    return
  end
  local first = meta.sweep == '-' and '-' or '(' .. meta.sweep
  local page = redis.call('ZRANGEBYLEX', LIVE, first, '+', 'LIMIT', 0, left)
  for _, handle in ipairs(page) do
    local p = find_part(handle)
    if p and p.state == 'ready' and p.at ~= 'held' and is_paused(p) then put(p) end
  end
  if #page < left then meta.sweep = nil else meta.sweep = page[#page] end
end

-- Look at the parts that are held back by rules that are gone. put() may hold one back again.
local function sweep_held()
  for _, key in ipairs(redis.call('SMEMBERS', HELD)) do
    local handles = redis.call('SRANDMEMBER', key, left)
    local first = handles[1] and find_part(handles[1])
    local word
    if first and key == held_by_tenant(first) then word = 't' .. first.info[PURSE]
    elseif first then word = 'a' .. first.info[ACTION] end
    if not (word and rule(word)) then
      for _, handle in ipairs(handles) do
        redis.call('SREM', key, handle)
        local p = find_part(handle)
        if p then put(p) end
      end
      left = left - #handles
      if redis.call('EXISTS', key) == 0 then redis.call('SREM', HELD, key) end
      if left <= 0 then return end
    end
  end
end

if version > 0 and (meta.ruled_by ~= incarnation or version > meta.ruled) then
  redis.call('DEL', RULES)
  meta.ruled_by, meta.ruled, meta.rules, meta.sweep = incarnation, version, #ARGV - 4, '+'
  for i = 5, #ARGV, 2 do
    redis.call('HSET', RULES, ARGV[i], ARGV[i + 1])
    if string.sub(ARGV[i], 1, 1) ~= 'w' then meta.sweep = '-' end
  end
end
if meta.sweep then
  sweep_held()
  if left > 0 then sweep_lines() end
  if meta.sweep then meta_was.sweep = nil else redis.call('HDEL', META, 'sweep') end
end
save()
return meta.sweep and 1 or 0
