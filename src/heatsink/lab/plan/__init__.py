"""Plans: how a table would behave under a day's traffic, with and without each remedy.

traces ─▶ survey, replay ─▶ a lane for each remedy            ─▶ tally ─▶ advice, findings
                            (split's table, watch, spreading, absorbing)
"""
