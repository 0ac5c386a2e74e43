"""The command line: what people type and see. It decides nothing.

main.py               process entry and its exit
commands.py           command names, imported on demand; exit codes
output.py             one JSON document, or a table
reading.py            read sessions; names that people type
show.py               runs, show, groups, rollouts
call_table.py         calls
tree_drawing.py       tree
tree_lines.py         a token tree as indented lines
run.py                run and stop
start_run.py          checks, rows, processes, workflow
follow_run.py         follow a run to its end
workflow_client.py    start, join, cancel workflows
external.py           services named in a run file
service_commands.py   up, down, ps
bench.py              timing claims on this machine
"""
