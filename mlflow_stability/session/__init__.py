"""Wires a training: hooks to probes, probes to detectors and journal, journal to the courier."""
