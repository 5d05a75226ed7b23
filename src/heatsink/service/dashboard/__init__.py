"""The dashboard of `heatsink serve`: static files that follow the API's events."""
