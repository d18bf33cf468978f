"""Presents: a diagnosis goes in, text or a page comes out."""
