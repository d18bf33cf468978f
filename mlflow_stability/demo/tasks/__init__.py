"""Small trainings to practise with: their tasks, their loop, and what can go wrong in it."""
