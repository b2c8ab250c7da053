"""A module that only has to be loaded, because gpumem calls nothing in it."""
