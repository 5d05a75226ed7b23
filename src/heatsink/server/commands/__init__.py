"""The commands of `heatsink`, one module per subject."""
