"""Kubernetes' own conformance specs on a Shoot: a few of each kind; ``make conformance`` runs all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from landscape.images import conformance
from tests.conformance import runner
from tests.conformance.cluster import cluster
from tests.conformance.results import Results
from tests.conformance.specs import focused
from tests.landscape.conftest import Landscape, run

# The first run compiles the specs and makes their images.
pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(3600)]

_SECONDS = 900
_CHOSEN = "|".join(
    (
        r"Discovery should locate the groupVersion",
        r"AdmissionWebhook .* should mutate configmap",
        r"Aggregator Should be able to support the 1\.17 Sample API Server",
        r"Deployment RollingUpdateDeployment should delete old pods",
        r"StatefulSet .* should perform rolling updates and roll backs",
        r"DNS should provide DNS for services",
        r"Networking Granular Checks: Pods should function for intra-pod communication: http",
        r"Services should be able to change the type from ExternalName to NodePort",
        r"Services should serve a basic endpoint from pods",
        r"Pods should support remote command execution over websockets",
        r"Security Context .* should not allow privilege escalation when false",
        r"Kubelet when scheduling a read only busybox container should not write to root filesystem",
        r"ConfigMap should be consumable .* with various prefixes",
        r"ServiceAccounts should mount an API token into pods",
        r"EmptyDir volumes should support \(non-root,0666,tmpfs\)",
        r"Projected configMap updates should be reflected in volume",
        r"Kubectl client Guestbook application",
        r"Projected PodCertificate .* should allow server and client pods to establish an mTLS connection",
    )
)
"""Specs of the API server, the controllers, the DNS, the network, the kubelet, volumes, kubectl and pulls of images."""


@pytest.fixture(scope="module")
def suite(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[runner.Suite]:
    directory = tmp_path_factory.mktemp("conformance")
    with cluster(landscape, directory, directory, _SECONDS) as suite:
        yield suite


def test_our_images_have_the_names_that_the_specs_of_this_release_use(suite: runner.Suite) -> None:
    """With a new release of Kubernetes the names change, and pods would wait for images that no registry has."""
    used = run(suite.e2e, "--list-images", timeout=120).split()
    assert set(used) >= conformance.ALL


def test_a_shoot_passes_conformance_specs_of_each_kind(suite: runner.Suite, tmp_path: Path) -> None:
    names = focused(runner.listed(suite.e2e), _CHOSEN)
    assert len(names) >= 18
    results = Results(tmp_path / "results.json", "any")

    runner.run_all(suite, names, results, _SECONDS, print)

    print(results.table(names))
    assert {name: results[name].message for name in results.failed(names)} == {}
    assert results.missing(names) == []
