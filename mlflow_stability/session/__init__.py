"""Connect hooks, probes, detectors, journal, autopilot and courier for one training."""
