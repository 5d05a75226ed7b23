"""A DynamoDB-compatible engine in memory that throttles hot partitions as the real one does.

It speaks DynamoDB's JSON 1.0 protocol to unmodified SDKs, counts capacity units as DynamoDB does,
and holds every partition to its limit, so that a hot partition can be seen on a laptop, and what
adaptive capacity does about it. Any credentials are accepted. There are no secondary indexes,
streams, backups or PartiQL.

settings → server → engine → operations (writes, reads, batches, transactions, tables)
                             └ expressions · table (rows, schema) · capacity · adaptation · values
"""
