"""Answers assistants: tools and manual pages over the Model Context Protocol."""
