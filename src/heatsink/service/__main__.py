"""`python -m heatsink.service` is `heatsink`."""

from .cli import main

main()
