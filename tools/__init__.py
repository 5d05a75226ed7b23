"""What writes parts of the source: `./dev generate`."""
