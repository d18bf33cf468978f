"""Measures: hooks on torch turn training into numbers, without changing it."""
