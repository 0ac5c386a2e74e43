"""Timing claims as ratios, each measured in one run. ``gyre bench NAME`` runs ``benchmarks.NAME``.

    bars.py                  the bars that trees must meet
    gateway.py               what the gateway adds to calls
    gateway_backend.py       an engine that answers at once
    gateway_conversation.py  requests as Claude Code sends them
    gateway_litellm.py       the LiteLLM proxy for comparison
    gateway_load.py          load generator, raw asyncio connections
    gateway_process.py       the gateway, sampled by stage
    gateway_stack.py         Postgres, run and engine for measuring
    tree.py                  training on trees against flat training
    tree_flat.py             torch's attention on separate paths
    tree_paths.py            seeded trees of turns

A module has ``measure(say, quick) -> document``, whose keys are those of ``gyre bench NAME --json``, and
``show(console, document)``. ``say`` takes a line of progress. ``quick`` is a smaller run that proves that the
path works, not that the claim holds.
"""
