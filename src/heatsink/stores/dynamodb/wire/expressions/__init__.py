"""DynamoDB's expressions: parsed once per text, cached, and evaluated against items.

Everything here is pure: it knows no table, no clock and no I/O.

    parser          text → nodes that evaluate themselves (operands, conditions, updates)
    reading         all expressions of one request, checked together: `read_expressions`
    legacy          the parameters that expressions replaced, as the same nodes
    key_conditions  the key condition of a query: a partition key and a range of sort keys
"""
