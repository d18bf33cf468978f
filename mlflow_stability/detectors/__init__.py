"""What detectors are built from: baselines, streaks, scores; pure."""
