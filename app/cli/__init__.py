"""The command line: what people see. It decides nothing."""
