"""`python -m heatsink` is `heatsink`."""

from heatsink.cli import main

main()
