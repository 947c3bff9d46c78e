"""A landscape in one privileged container, for those who are not root on Linux but have an engine."""
