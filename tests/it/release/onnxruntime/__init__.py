"""Loaded, and nothing can be asked of it."""
