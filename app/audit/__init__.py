"""An independent witness of a run: it shares no code with recorder, trainer or account keeping."""
