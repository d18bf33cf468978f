"""Statistics of weights, gradients and optimizer state, of the whole model and by layer."""
