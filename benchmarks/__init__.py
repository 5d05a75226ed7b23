"""What Heatsink costs, each claim measured in the same run as the plain way of doing it.

`./dev bench --list` names them. Contenders take turns, so that a slow moment of the machine hits
both; values are medians, with the quartiles beside them. No test depends on a timing.
"""
