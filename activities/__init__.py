"""Side effects of workflows, one file per outside thing.

cells.py            commands to cells, waits for them
decisions.py        rules applied to one database snapshot
evaluator.py        score a snapshot exactly once
executions.py       resume, fold and settle rows
harness.py          provision, run, seal an attempt
heartbeats.py       heartbeats and polls of activities
milestones.py       progress of harnesses in histories
sandbox_inputs.py   a task's folder and limits
snapshots.py        sealed workspaces into S3, once
trajectories.py     open a batch: freeze, extract, pack
"""
