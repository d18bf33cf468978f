"""Draws curves, layer grids and histograms; the only package that loads matplotlib."""
