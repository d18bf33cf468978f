"""Printed logs, line by line."""
