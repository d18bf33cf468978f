"""Recognises trainings whose loss has no level that measures progress."""
