"""The demo: generated tasks, a small model made on the spot, warm-up, and RL."""
