"""From the history of a run to a diagnosis: findings, causes, advice, verdict."""
