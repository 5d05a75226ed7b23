-- part: now, handle
local p = find_part(ARGV[2])
if not p then return nil end
local size = waiting(p) + p.done + p.failed + p.cancelled + p.running
return { p.state, size, p.done, p.failed, p.cancelled, p.running, p.delayed }
