"""HTML pages and what is drawn on them; the order of their sections is in `reports/templates/`."""
