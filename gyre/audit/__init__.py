"""An independent witness: shares no code with recorder, trainer or account keeping."""
