"""Programs that people run and what they show.

__main__.py   `python -m app` is `gyre`
audit/        check a run without its own code
cli/          the `gyre` commands
demo/         a model, tasks and a run to try
stack/        embedded services and a run's processes
worker.py     process that hosts workflows and activities
"""
