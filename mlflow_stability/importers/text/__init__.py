"""Printed logs."""
