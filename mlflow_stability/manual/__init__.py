"""The manual: written pages, and pages that are made from the code."""
