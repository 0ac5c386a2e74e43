"""The data that training works on, as pure functions: conversations, prefix trees, trajectories, packed rows.

answers.py       sampled text to reasoning, text and calls
arrays.py        token ids and log-probabilities as arrays and bytes
canonical.py     what makes two requests the same conversation
extraction.py    a tree to at most J_max trajectories
layout.py        shared tokens in a packed row
missing_ids.py   calls that come back without an id
packing.py       trajectories to micro-steps under a token budget
strict_json.py   JSON that every later reader accepts
tool_calls.py    tool calls in sampled text
tree.py          the prefix tree of an attempt
"""
