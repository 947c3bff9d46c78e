"""A user of the garden with the right to get Shoots, and so to read decoded histories."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.landscape.conftest import Landscape

READER = "history-reader"


@contextmanager
def history_reader(landscape: Landscape) -> Iterator[str]:
    """The token of a ServiceAccount that lives as long as the context."""
    made = [f"clusterrole/{READER}", f"clusterrolebinding/{READER}"]
    try:
        landscape.kubectl("garden", "-n", "default", "create", "serviceaccount", READER)
        role = ["create", "clusterrole", READER, "--verb=get", "--resource=shoots.core.gardener.cloud"]
        landscape.kubectl("garden", *role)
        bound = [f"--clusterrole={READER}", f"--serviceaccount=default:{READER}"]
        landscape.kubectl("garden", "create", "clusterrolebinding", READER, *bound)
        yield landscape.kubectl("garden", "-n", "default", "create", "token", READER).strip()
    finally:
        landscape.kubectl("garden", "delete", "--ignore-not-found", *made)
        landscape.kubectl("garden", "-n", "default", "delete", "--ignore-not-found", "serviceaccount", READER)
