-- load: now. Returns the fields of PartitionLoad.
return load()
