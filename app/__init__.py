"""Commands, embedded services, the worker process, the demo and the audit: what people run and see."""
