"""Render a diagnosis or a comparison: terminal, JSON, CSV, Markdown, HTML."""
