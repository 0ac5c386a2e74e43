"""The machine a process runs on: processes by identity, free ports. Standard library only, quick to import.

ports.py       free ports on loopback
processes.py   process identity, exact signals, exit with the parent
"""
