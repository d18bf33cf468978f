"""What goes into the journal."""
