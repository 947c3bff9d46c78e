"""For all unit tests."""

from hypothesis import settings

# How long a generated case takes says more about the machine's load than about us.
settings.register_profile("unhurried", deadline=None, max_examples=50)
settings.load_profile("unhurried")
