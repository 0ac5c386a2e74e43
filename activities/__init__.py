"""Side effects, one file per outside thing."""
