"""Pure decisions, shared by the live system and the simulator.

No I/O, no clock and no randomness of their own: time and seeds come in as arguments.
"""
