"""The append-only file that training writes and the courier follows."""
