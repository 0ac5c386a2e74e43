"""The embedded engine: a small continuous-batching server of the engine protocol (gyre/contracts/engine.py).

architecture.py   the shape of a Qwen3 model, read from config.json
weights.py        Hugging Face tensors -> fused tensors the runner multiplies with; the pull
kv.py             KV cache: one row a running request, grown on demand
prefix.py         KV of finished prefixes in blocks of tokens, shared between requests, LRU
model.py          the forward pass: a chunk of one prompt, or one token of many requests
sampling.py       a token as a function of (logits, seed, position)
requests.py       one request on its way through the engine
scheduler.py      the thread that admits, prefills, decodes and obeys commands between steps
server.py         HTTP
conformance.py    checks that any server of the protocol must pass
measure.py        decode speed
"""
