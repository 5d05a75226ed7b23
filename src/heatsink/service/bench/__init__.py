"""`heatsink bench`: how fast a store is here, through Heatsink and bare."""
