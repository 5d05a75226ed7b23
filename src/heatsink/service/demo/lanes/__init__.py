"""The same traffic on a plain store and on Heatsink: what is offered, and how it is counted."""
