"""Pictures of a recording, drawn beside the training."""
