"""Draw curves, layer grids and histograms; the only package that imports matplotlib."""
