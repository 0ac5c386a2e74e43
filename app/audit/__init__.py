"""Independent recount of a run. It shares no code with the recorder, the trainer or the bookkeeping.

account.py      dispositions, group account, failed work
command.py      the command `gyre audit RUN`
findings.py     named checks and their violations
history.py      largest payload in the Temporal histories
objects.py      sizes and contents of S3 objects
policy.py       log-probabilities recomputed in fp32
rebuild.py      calls rebuilt from the prefix tree
report.py       stable JSON document and table
selection.py    seeded choice of calls to recompute
targets.py      training targets recounted from the trees
training.py     batches, frozen rewards, gradients added once
trees.py        walk all trees, execution by execution
versions.py     durable weights and what they sampled
waterlevel.py   role changes replayed against remaining capacity
witness.py      the whole audit, read-only
"""
