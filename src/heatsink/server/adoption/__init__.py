"""`heatsink adopt`: the steps in which a table starts to use Heatsink, and leaves it again.

`steps.py` reads and records how far a table's adoption is. `writers.py` finds programs that write
to the table without Heatsink. `leaving.py` moves rows back under the bare key. Their calls wait
while DynamoDB throttles (`patient.py`).
"""
