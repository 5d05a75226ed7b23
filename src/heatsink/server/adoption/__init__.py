"""`heatsink adopt`: the steps by which a table comes under Heatsink, and leaves it again.

`steps.py` reads and records where a table stands, `writers.py` finds programs that write past
Heatsink, `leaving.py` brings rows back under the bare key.
"""
