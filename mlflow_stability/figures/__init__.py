"""Draws: curves, grids of layers and histograms -> pictures. The one room that loads matplotlib."""
