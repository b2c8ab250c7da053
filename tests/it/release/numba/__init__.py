"""Numba's pending deallocations."""

from . import cuda  # noqa: F401
