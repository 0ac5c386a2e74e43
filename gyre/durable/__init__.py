"""Temporal: client, converter, typed activity names and options, error mapping. No business logic.

activities.py   typed names of all activities
calls.py        typed calls of activities
client.py       client, converter, search attribute keys
failures.py     our errors as Temporal's, and back
options.py      all time-outs and retry policies
"""
