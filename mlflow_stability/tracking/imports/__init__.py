"""Other people's logs as runs."""
