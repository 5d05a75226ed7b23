"""What the API is, for machines and for people."""
