"""Plans: how a table would behave under a day's traffic, with and without each remedy.

traces ─▶ replay ─▶ lane (one for each remedy) ─▶ findings
"""
