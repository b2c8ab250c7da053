"""Numba's pending frees."""

from . import cuda  # noqa: F401
