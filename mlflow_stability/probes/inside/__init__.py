"""Measurements of the inside of a model, in its forward pass: activations, attention, representations, routers."""
