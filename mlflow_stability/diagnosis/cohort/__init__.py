"""Many runs, summarised."""
