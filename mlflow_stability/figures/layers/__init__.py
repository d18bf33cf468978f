"""Pictures by layer and step."""
