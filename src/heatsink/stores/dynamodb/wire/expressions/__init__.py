"""DynamoDB's expressions: read once per text, kept, and evaluated against items.

lexer → parser → nodes that know how to evaluate themselves (operands, conditions, updates).
"""
