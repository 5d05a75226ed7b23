"""Plugins of pytest for the tests of this project; `tests/conftest.py` loads them."""
