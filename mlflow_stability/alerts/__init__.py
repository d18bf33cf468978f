"""Send alerts about events, and signals to other monitoring tools."""
