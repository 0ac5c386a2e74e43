"""The machine that a process runs on. Needs the standard library only, so it is quick to import.

ports.py       free ports on loopback
processes.py   process identity, exact signals, parent's end
"""
