"""DynamoDB as it goes over the wire: values, expressions, errors, signatures. No I/O."""
