-- disown: now, consumer
if meta.owner == ARGV[2] then
  meta.owner = ''
  save()
end
return 1
