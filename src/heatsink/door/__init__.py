"""DynamoDB operations on spread tables, for applications that do not know of the spreading.

`core.py` takes an operation in wire form, asks for the upstream calls that the operation needs, and
returns the answer that the application expects. The core does no I/O: drivers make the calls
(`drivers.py`). *Upstream* is DynamoDB itself, or an emulator.
"""
