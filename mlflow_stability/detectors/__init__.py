"""Building blocks of detectors: baselines, streaks, scores."""
