"""The model endpoint a harness talks to: dialects, token rendering, recorder, router."""
