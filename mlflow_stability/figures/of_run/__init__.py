"""The figures that the courier draws into each run: a module with `FIGURES` adds one."""
