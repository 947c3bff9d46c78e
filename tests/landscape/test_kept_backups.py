"""The backups of a cluster of some purposes outlive it, until they expire or an operator has them deleted."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.landscape.conftest import Landscape
from tests.landscape.shoots import Shoot, eventually

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(600, func_only=True)]

_ANNOTATION = "backupentry.core.gardener.cloud/force-deletion=true"


@pytest.fixture(scope="module")
def shoot(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoot]:
    shoot = Shoot(landscape, "kept", tmp_path_factory.mktemp("kubeconfigs"))
    with shoot.created(shoot.manifest(purpose="production")):
        assert shoot.uid
        yield shoot


def _entries(shoot: Shoot) -> list[str]:
    listed = json.loads(shoot.garden("get", "backupentries", "-o", "json"))["items"]
    return [each["metadata"]["name"] for each in listed if each["metadata"]["name"].endswith(shoot.uid)]


def _snapshots(shoot: Shoot) -> list[Path]:
    buckets = shoot.landscape.directory / "object-store/buckets"
    return [path for prefix in shoot.backups() for path in (buckets / prefix).rglob("Full-*")]


def test_kept_backups_are_deleted_when_an_operator_requests_it(shoot: Shoot) -> None:
    shoot.kubectl("create", "configmap", "kept")
    eventually(lambda: _snapshots(shoot), "it is backed up", 60)
    shoot.delete()
    [entry] = _entries(shoot)
    assert _snapshots(shoot)
    shoot.garden("annotate", "backupentry", entry, _ANNOTATION)
    eventually(lambda: not _entries(shoot), "its entry is gone", 60)
    assert shoot.backups() == []

    def states() -> list[str]:
        deletion = shoot.flow(f"shoot/{shoot.reference}/{shoot.uid}/delete-backups")
        return [task["state"] for task in deletion["tasks"]]

    # The last task deletes the entry, and ends a moment later.
    eventually(lambda: states() == ["Finished", "Finished"], "its workflow has ended", 20)
