"""Sandboxes: harnesses run, supervised and scored in isolation, without knowing Temporal or a database.

    adapters.py          command lines from the catalogue
    deadline.py          time limit of file stages
    entry.py             first program inside a sandbox
    evaluate.py          score in a fresh sandbox
    harness_process.py   start, attach, poll, kill harness
    isolation.py         bubblewrap command, users, capability probe
    programs.py          find a harness's program
    relay.py             sandbox connections to the gateway
    snapshot.py          deterministic capture and restore, zstd
    spawn.py             start a sandbox, guarantee teardown
    supervise.py         the supervisor process of harnesses
    watch.py             output, limits, end of sandboxes
    workspace.py         create workspaces, count their changes

The folder ``catalogue`` holds one TOML file per harness.

``supervise``, ``watch``, ``relay``, ``spawn``, ``isolation`` and ``entry`` run once per execution in a
process of their own. They import only what starts in milliseconds, so nothing is re-exported here.
"""
