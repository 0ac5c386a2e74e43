"""The vocabulary of Gyre: ids, enums, lifecycle tables, messages, protocols and errors. No I/O."""
