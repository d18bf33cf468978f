"""Facts and settings of the run: environment, model, optimizer, and their changes."""
