"""The manual: written pages, and pages generated from the code."""
