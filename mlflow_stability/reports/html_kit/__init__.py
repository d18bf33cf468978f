"""What is drawn on a page; the pages, and the order of their sections, are in `reports/templates/`."""
