"""The DynamoDB protocol without I/O: values, expressions, errors, signatures."""
