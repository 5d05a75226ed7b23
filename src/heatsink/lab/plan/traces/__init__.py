"""What is replayed: a CSV file, a load by its parameters, or one that was published."""
