"""An optimizer and a loss scaler for trainings that spike."""
