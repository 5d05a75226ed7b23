-- record_of: now, handle. Returns the copy of the batch's record that the part carries.
return redis.call('GET', root .. 'part/' .. ARGV[2] .. '/record')
