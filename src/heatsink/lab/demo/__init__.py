"""Heatsink told in acts, with real traffic: on a page beside the dashboard, or in a terminal."""
