"""One file for each format of logs; a module that has a `FORMAT` is found by itself."""
