"""Restores: a broken step changes nothing, and a training that diverges is set back to a good state and goes on."""
