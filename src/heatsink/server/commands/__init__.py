"""The commands of `heatsink`, one module for each subject."""
