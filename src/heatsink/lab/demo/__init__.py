"""The demo: Heatsink in five acts with real traffic, on a page beside the dashboard or as text."""
