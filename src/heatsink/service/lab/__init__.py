"""The command `heatsink lab`."""
