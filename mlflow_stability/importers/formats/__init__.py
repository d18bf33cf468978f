"""One file for each format of logs, found by itself: a module here that has a `FORMAT` is asked what it knows."""
