"""Wires, afterwards: what was typed goes in, a result and an exit code come out."""
