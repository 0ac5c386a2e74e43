"""The embedded engine: a small continuous-batching server of the engine protocol (gyre/contracts/engine.py).

__main__.py       the process, exits with its parent
architecture.py   sizes of Qwen3 from config.json
build.py          build an engine from its boot
kv.py             KV cache of running requests
load_weights.py   files or pulls to fused tensors
measure.py        measure decode speed without HTTP
metrics.py        Prometheus metrics of the scheduler
prefix.py         KV of earlier prefixes, shared
publication.py    fence, pull, verify and swap weights
qwen3.py          forward pass over the KV cache
requests.py       state of one request
sampling.py       tokens from seed and position
scheduler.py      admit, prefill, decode, run commands
server.py         the engine protocol over HTTP
validation.py     one sentence per bad request
"""
