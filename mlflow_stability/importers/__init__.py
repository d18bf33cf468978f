"""Read logs of other tools into a `RunHistory`."""
