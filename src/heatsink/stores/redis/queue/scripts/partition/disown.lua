-- disown: now, consumer
begin()
if meta.owner == ARGV[2] then
  meta.owner, meta.workers = '', 0
  save()
end
return 1
