"""DynamoDB operations on spread tables, for applications that need not know of it.

`core.py` takes an operation in wire form, asks for the upstream calls that it needs and returns the
answer that the application expects. It does no I/O: drivers do (`drivers.py`).
"""
