"""DynamoDB's expressions: parsed once per text, cached, and evaluated against items.

lexer → parser → nodes that know how to evaluate themselves (operands, conditions, updates).
"""
