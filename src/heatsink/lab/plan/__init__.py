"""What a table would do under a day's traffic, with and without each remedy.

traces (csv_trace · synthetic · published) ─▶ replay ─▶ a lane for each remedy ─▶ findings
                                                        (table model, spreading, absorbing)
"""
