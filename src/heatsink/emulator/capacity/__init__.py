"""The capacity model: how DynamoDB relieves hot partitions by itself, and when it cannot."""
