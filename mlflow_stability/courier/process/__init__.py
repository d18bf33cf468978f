"""The claim on a session, and whether its training process is alive."""
