"""Which parameters go with instability."""
