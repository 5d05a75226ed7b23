"""One conversation goes viral, twice at once: on a plain store and on Heatsink."""
