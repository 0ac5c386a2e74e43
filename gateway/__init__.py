"""The model endpoint that harnesses call: serves four vendors' dialects and records every token.

__main__.py        the process: port and Unix socket
app.py             routes of the four dialects
attempt_cache.py   attempts in memory, within a bound
batches.py         many calls in one transaction
delivered.py       records delivered answers in bulk
delivery.py        first event, pings, committed content
dialects/          one vendor's wire format per file
encoding.py        text to ids, shared prefixes cached
engines.py         router and engine client, retries
errors.py          failures that callers see, with statuses
live_attempt.py    one attempt's record and open calls
prompts.py         a request matched to the record
recorder.py        commits before answers; renews leases
rendering.py       chat template, sampled ids to text
role_evidence.py   decides what a call is for
service.py         the call path, step by step
store.py           access to Postgres, tolerates outages
watch.py           alarms about unparsed tool calls
"""
