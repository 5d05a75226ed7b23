-- load: now
return load()
