"""The vocabulary of Gyre: ids, enums, lifecycle tables, messages, protocols and errors. No I/O.

boot.py        boot files of processes, trainer commands
engine.py      the engine protocol: token ids only
errors.py      failures by boundary, retryable or not
ids.py         business names, queues, workflow ids
json_text.py   JSON written byte for byte, per purpose
lifecycle.py   states and their transition tables
messages.py    what workflows and activities exchange
roles.py       roles of calls, role-matching rules
search.py      Temporal search attributes and types
tokens.py      attempt tokens, signed with HMAC
"""
