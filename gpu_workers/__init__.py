"""A cell: the processes that serve and train one copy of the policy. Knows nothing of workflows.

children.py     start, watch and end child processes
clients.py      talk to trainer and engine
engine/         embedded inference with continuous batching
incarnation.py  engine and trainer of one epoch
supervisor.py   the process that is a cell
trainer/        training with Megatron Core
transfer/       move weights between processes
"""
