"""Postgres models, sessions and one repository per group of tables. All SQL of Gyre is in this package.

attempts.py          open, fence and seal attempts
audit.py             plain SQL rows for the audit
base.py              declarative base and constraint names
batches.py           assemble and store training batches
blobs.py             rows that prove S3 objects exist
calls.py             record model calls and their nodes
cells.py             cell epochs, roles and served versions
databases.py         create the database itself
demo_report.py       results that the demo prints
direct.py            the event loop's own Postgres connection
evaluations.py       evaluations and their rewards
executions.py        resume points and final dispositions
groups.py            dispatch, readiness, counts for decisions
harnesses.py         task and configuration of an execution
migrate.py           upgrade the schema, safely in parallel
models/              the tables
names.py             check that an id exists
object_store.py      content-addressed files in S3
queries.py           read models of the commands
recording.py         record many calls by one statement
rollout_queries.py   one rollout's calls and token tree
run_state.py         status, configuration, versions of a run
runs.py              create runs and revise their configuration
session.py           connection pools and short transactions
snapshots.py         one snapshot per sealed attempt
training.py          micro-steps and versions under epoch fences
waits.py             who waits for what, since when
"""
