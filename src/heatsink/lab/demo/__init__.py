"""The demo: Heatsink in six acts with real traffic, on a page beside the dashboard or as text."""
