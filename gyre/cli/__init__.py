"""What people see. Decides nothing."""
