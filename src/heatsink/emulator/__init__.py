"""A DynamoDB emulator in memory that throttles hot partitions as DynamoDB does.

It speaks DynamoDB's JSON 1.0 protocol to unmodified SDKs, counts capacity units as DynamoDB does,
and holds every partition to its limit. So a developer sees on a laptop how a partition gets hot,
and what adaptive capacity does about it: in a table, and in a global index of a table. By default,
the emulator accepts any credentials. `engine.REFUSED` lists what it does not have.

settings → server → engine → operations (writes, reads, batches, transactions, tables, streams …)
                             └ expressions · table (rows, schema, indexes, stream, expiry)
                               └ units · capacity · adaptation · values
"""
