"""`heatsink door`: a server that speaks DynamoDB's protocol in front of DynamoDB.

`gate.py` accepts requests, `access.py` checks who sends them, `upstream.py` answers them with the
core (`heatsink.door`) or passes them on, and `process.py` runs all that in one or more processes.
"""
