"""Pure decisions, shared by the live system and the simulator: no I/O, no clock, no randomness of their own."""
