"""A DynamoDB emulator in memory that throttles hot partitions as DynamoDB does.

It speaks DynamoDB's JSON 1.0 protocol to unmodified SDKs, counts capacity units as DynamoDB does,
and holds every partition to its limit. So a developer sees on a laptop how a partition gets hot,
and what adaptive capacity does about it. The emulator accepts any credentials, and has no secondary
indexes, streams, backups or PartiQL.

settings → server → engine → operations (writes, reads, batches, transactions, tables)
                             └ expressions · table (rows, schema) · capacity · adaptation · values
"""
