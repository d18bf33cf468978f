"""Every phrase that reports share."""
