"""Objects in etcd are encrypted in another way, as the owner wishes: more kinds, or by another provider."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.landscape import wire
from tests.landscape.conftest import Landscape
from tests.landscape.shoots import Shoot, eventually

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(600, func_only=True)]

_SECONDS = 200.0


@pytest.fixture(scope="module")
def shoot(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    shoot = Shoot(landscape, "cipher", tmp_path_factory.mktemp("kubeconfigs"))
    manifest = shoot.manifest()
    # Required for aesgcm: its keys must not be used for long.
    rotates = {"credentials": {"etcdEncryptionKey": {"rotationPeriod": "672h"}}}
    manifest["spec"].setdefault("maintenance", {})["autoRotation"] = rotates
    with shoot.created(manifest):
        yield shoot


def _encrypt(shoot: Shoot, **config: Any) -> None:
    """Ask for it, and wait until all that is stored is so."""
    shoot.change({"kubernetes": {"kubeAPIServer": {"encryptionConfig": config}}})

    def at_rest() -> bool:
        found: dict[str, Any] = shoot.get()["status"]["credentials"]["encryptionAtRest"]
        return config.items() <= found.items()

    eventually(at_rest, f"what is stored is encrypted as asked: {config}", _SECONDS)
    shoot.wait_until_reconciled(_SECONDS)


def test_stored_objects_are_rewritten_for_another_kind_and_for_each_provider(shoot: Shoot, tmp_path: Path) -> None:
    def look(provider: str) -> None:
        for kind in ("secrets", "configmaps"):
            assert wire.otherwise_encrypted(shoot, tmp_path, provider, f"/registry/{kind}/") == []
        assert shoot.kubectl("get", "configmap", "kept", "-o", "jsonpath={.data.as}") == "it-was"

    shoot.kubectl("create", "configmap", "kept", "--from-literal=as=it-was")
    _encrypt(shoot, resources=["configmaps"])
    look("aescbc")
    for provider in ("secretbox", "aesgcm", "aescbc"):
        _encrypt(shoot, provider={"type": provider})
        look(provider)
