"""Measurements against other ways of doing the same, printed side by side."""
