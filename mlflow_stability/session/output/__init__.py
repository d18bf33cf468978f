"""What a training prints: one line at its beginning, each trouble once, every rollback, one line at its end."""
