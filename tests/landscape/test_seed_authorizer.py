"""A seed's credentials lie in a cluster that others may run: with them one gets at what belongs to that seed alone."""

import base64
import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.landscape.conftest import BIN, Landscape
from tests.landscape.shoots import NAMESPACE, Shoot

pytestmark = pytest.mark.landscape

GROUP = "gardener.cloud:system:seeds"
ELSEWHERE = "seed-3"
"""A seed without objects: only these tests use its name."""
_LATE = 2


def ask(kubeconfig: Path, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    argv = [str(BIN / "kubectl"), f"--kubeconfig={kubeconfig}", "-n", NAMESPACE, *arguments]
    return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=60, check=False)


def as_elsewhere(landscape: Landscape, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    identity = [f"--as=gardener.cloud:system:seed:{ELSEWHERE}", f"--as-group={GROUP}"]
    return ask(landscape.directory / "kubeconfigs/garden.yaml", *arguments, *identity, stdin=stdin)


def test_gardenlets_have_done_all_that_they_do_without_a_refusal(landscape: Landscape, shoot: Shoot) -> None:
    """Whatever the tests before had them do. A refusal is tried again, so it would only show as a flow that hangs.

    One that is not repeated was late: its object has just gone, or gone elsewhere.
    """
    log = Path(landscape.status["processes"]["garden/admission"]["log"]).read_text()

    by_authorizer = re.findall(r"seed (\S+) may not ([^\"]*)", log)
    by_admission = re.findall(r"refused \w+ by gardener.cloud:system:seed:(\S+): (.*)", log)
    refused = Counter(each for each in (*by_authorizer, *by_admission) if each[0] != ELSEWHERE)

    print(f"{refused.total()} refusals")
    assert [each for each, times in refused.items() if times > _LATE] == []


def test_a_seed_reads_its_own_clusters(landscape: Landscape, shoot: Shoot, tmp_path: Path) -> None:
    """Both ask for the same: the home of the Shoot gets it, another seed does not."""
    listed = landscape.kubectl(shoot.seed, "-n", "garden", "get", "secret", "gardenlet-kubeconfig", "-o", "json")
    home = tmp_path / "gardenlet.kubeconfig"
    home.write_bytes(base64.b64decode(json.loads(listed)["data"]["kubeconfig"]))

    for question in (
        ["get", "secret", f"{shoot.name}.ssh-keypair"],
        ["patch", "shoot", shoot.name, "--subresource=status", "--type=merge", "-p={}", "--dry-run=server"],
    ):
        mine, theirs = ask(home, *question), as_elsewhere(landscape, *question)
        assert mine.returncode == 0, mine.stderr
        assert theirs.returncode == 1
        assert f"nothing of seed {ELSEWHERE} needs that" in theirs.stderr
    assert as_elsewhere(landscape, "get", "shoots").returncode == 0, "a gardenlet of another seed may list Shoots"


@pytest.mark.parametrize(
    "question",
    [
        "get secrets",
        "get secrets --all-namespaces",
        "-n garden get secret shoot-issuer",
        "-n kube-system get configmap extension-apiserver-authentication",
        "-n garden create secret generic mine --dry-run=server",
        "annotate seed seed-1 mine=yes --dry-run=server",
        "create clusterrolebinding mine --clusterrole=cluster-admin --user=me --dry-run=server",
    ],
)
def test_a_seed_cannot_read_objects_of_other_seeds(landscape: Landscape, question: str) -> None:
    done = as_elsewhere(landscape, *question.split())

    assert done.returncode == 1, done.stdout
    assert "forbidden" in done.stderr.lower()


def test_gardenlets_have_no_role(landscape: Landscape) -> None:
    """Roles grant a right whatever the seed authorizer answers."""
    listed = landscape.kubectl("garden", "get", "clusterrolebindings,rolebindings", "-A", "-o", "json")
    subjects = {subject["name"] for each in json.loads(listed)["items"] for subject in each.get("subjects") or ()}

    assert "gardener.cloud:system:operators" in subjects
    assert GROUP not in subjects
