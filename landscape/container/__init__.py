"""A landscape in one privileged container, for users who are not root on Linux and have a container engine."""
