-- disown: now, consumer. Gives the partition up if this consumer owns it.
begin()
if meta.owner == ARGV[2] then
  meta.owner, meta.workers = '', 0
  save_numbers()
end
return 1
