"""Training of one cell's policy with Megatron Core.

__main__.py        the process, one per rank
attention.py       causal chains and ancestor blocks, merged
batch.py           claims, computes and finishes micro-steps
checkpoints.py     policy versions in S3, Hugging Face names
data.py            rows of Postgres to packed tensors
device.py          where CPU and GPU differ
hf_weights.py      Hugging Face names to shards and back
kernels.py         fused attention with its log-sum-exp
logprobs.py        log-probabilities over a sharded vocabulary
loss.py            capped, clipped sequence policy loss
megatron_model.py  Megatron's Qwen3 over packed rows
optimizer.py       AdamW over fp32 master weights
ranks.py           process groups, ranks kept in step
replica.py         forward, backward and update per rank
server.py          JSON commands over a Unix socket
store_messages.py  messages of any size between ranks
trainer.py         load, train, publish, release
"""
