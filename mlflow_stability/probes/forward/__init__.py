"""Opens and closes measurements inside a forward pass."""
