"""Grades candidate code against tests that it never sees."""
