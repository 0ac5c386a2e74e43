"""Pure decisions, shared by the live system and the simulator.

They have no I/O, clock or randomness: time and seeds are arguments.

boundary.py       what a run does next
call_roles.py     role-matching rules
dispatch.py       which task comes next, seeded
dispositions.py   what becomes of an execution
groups.py         group readiness, relative advantages
waterlevel.py     when a cell may switch to training
"""
