"""A DynamoDB emulator in memory that throttles hot partitions as DynamoDB does.

The emulator speaks DynamoDB's JSON 1.0 protocol to unmodified SDKs. It counts capacity units as
DynamoDB does, and enforces the limit of every partition. So a developer sees on a laptop how a
partition of a table or of a global index gets hot, and what adaptive capacity does about it. By
default, the emulator accepts any credentials. `engine.REFUSED` lists the operations that the
emulator does not have.

settings → server → engine → operations (writes, reads, batches, transactions, tables, streams …)
                             └ expressions · table (rows, schema, indexes, stream, expiry)
                               └ units · capacity · adaptation · values
"""
