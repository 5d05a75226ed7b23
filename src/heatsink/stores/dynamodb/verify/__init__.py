"""Checks, on a real DynamoDB, what the rest of Heatsink assumes about DynamoDB.

`assumptions.py` runs the checks on temporary tables of `ground.py`. Each other module holds the
checks of one subject. `heatsink verify` prints the findings.
"""
