"""Isolation, harness supervisor, gateway forwarder, adapters, workspaces and evaluation. Knows no Temporal.

``supervise``, ``watch``, ``relay``, ``spawn``, ``isolation`` and ``entry`` run once an execution in a
process of their own: they import only what starts in milliseconds, so nothing is re-exported here.
"""
