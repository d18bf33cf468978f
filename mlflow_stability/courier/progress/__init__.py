"""How far the delivery is, on pages that other processes read."""
