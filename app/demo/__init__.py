"""The demo: generated tasks, a small model made on the spot, a warm-up, and RL through the whole system.

command.py           gyre demo from start to end
recipe.py            the run file's numbers, with reasons
prepare.py           writes tasks, model and run file
tasks.py             words to spell into files
harness.py           texts of the tiny harness
tokenizer.py         byte-complete tokenizer with few phrases
model.py             tiny Qwen3 with fresh weights
demonstrations.py    careful and careless example traces
warmup.py            a minute of supervised learning
report.py            scores with clustered standard errors
screen.py            progress bar, then result tables
"""
