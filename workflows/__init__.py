"""Durable orchestration: deterministic, one class per file.

cell.py             serializes a cell's role changes
evaluation.py       scores one snapshot, try by try
query_group.py      N executions of one task
registry.py         all workflows, for workers
rollout.py          attempts until one disposition
training_burst.py   updates between two publications
training_run.py     asks what is due, acts
"""
