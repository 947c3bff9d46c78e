"""Which extensions a Shoot has, when they run, and which must be there: a row per rule of spec/extensions.md 1.8."""

from datetime import timedelta
from typing import Any

import pytest

from api.decisions.registrations import (
    Phase,
    deletion_phases,
    required_pairs,
    responsible,
    versions_by_phase,
    wanted_extensions,
)


def registration(name: str = "ext", /, *, metadata: Any = None, **resource: Any) -> dict[str, Any]:
    kind_and_type = {"kind": "Extension", "type": "local-ext"}
    return {"metadata": {"name": name, **(metadata or {})}, "spec": {"resources": [kind_and_type | resource]}}


def shoot(*extensions: dict[str, Any], workers: bool = True, **spec: Any) -> dict[str, Any]:
    pool = {"name": "pool", "machine": {"type": "local", "image": {"name": "local", "version": "1"}}}
    provider = {"type": "local", "workers": [pool] if workers else []}
    return {"spec": {"provider": provider, "extensions": list(extensions), **spec}}


ASKED = {"type": "local-ext", "providerConfig": {"a": 1}}


@pytest.mark.parametrize(
    ("subject", "registered", "on"),
    [
        (shoot(ASKED), registration(), True),
        (shoot(), registration(), False),
        (shoot(ASKED | {"disabled": True}), registration(), False),
        (shoot(ASKED | {"disabled": False}), registration(), True),
        (shoot(), registration(autoEnable=["shoot"]), True),
        (shoot(), registration(autoEnable=["seed"], clusterCompatibility=["shoot", "seed"]), False),
        (shoot({"type": "local-ext", "disabled": True}), registration(autoEnable=["shoot"]), False),
        (shoot(ASKED), registration(clusterCompatibility=["seed"]), False),
        (shoot(ASKED, workers=False), registration(), False),
        (shoot(ASKED, workers=False), registration(workerlessSupported=True), True),
        (shoot(workers=False), registration(autoEnable=["shoot"]), False),
        (shoot(ASKED), registration(primary=False), False),
        (shoot(ASKED), registration(kind="Network"), False),
        (shoot(ASKED), registration(metadata={"deletionTimestamp": "2026-11-21T12:00:00Z"}), False),
        (shoot({"type": "other"}), registration(), False),
    ],
)
def test_a_shoot_has_the_extensions_it_asks_for_and_those_that_come_by_themselves(subject, registered, on):
    assert [each.type for each in wanted_extensions(subject, [registered])] == (["local-ext"] if on else [])


def test_what_the_owner_configures_and_how_long_it_may_take_comes_along():
    (plain,) = wanted_extensions(shoot(ASKED), [registration()])
    assert (plain.provider_config, plain.phase, plain.timeout) == (
        {"a": 1},
        Phase.AFTER_API_SERVER,
        timedelta(minutes=3),
    )
    (slow,) = wanted_extensions(shoot(ASKED), [registration(reconcileTimeout="10m")])
    assert slow.timeout == timedelta(minutes=10)


@pytest.mark.parametrize("phase", list(Phase))
def test_each_phase_has_its_own(phase):
    registered = [registration(lifecycle={"reconcile": str(phase)})]
    for other in Phase:
        assert len(wanted_extensions(shoot(ASKED), registered, other)) == (other is phase)
    assert list(versions_by_phase(wanted_extensions(shoot(ASKED), registered))) == [phase]


def test_another_configuration_is_another_version():
    one = versions_by_phase(wanted_extensions(shoot(ASKED), [registration()]))
    other = versions_by_phase(wanted_extensions(shoot(ASKED | {"providerConfig": {"a": 2}}), [registration()]))
    assert one != other


@pytest.mark.parametrize(
    ("lifecycle", "phase"),
    [
        (None, Phase.BEFORE_API_SERVER),
        ({"delete": "BeforeKubeAPIServer"}, Phase.BEFORE_API_SERVER),
        ({"delete": "AfterKubeAPIServer"}, Phase.AFTER_API_SERVER),
    ],
)
def test_an_extension_goes_before_the_api_server_unless_its_registration_says_otherwise(lifecycle, phase):
    rest = {"lifecycle": lifecycle} if lifecycle else {}
    assert deletion_phases([registration(**rest)]) == {"local-ext": phase}


SEED = {"spec": {"dns": {"internal": {"type": "rfc2136"}}, "backup": {"provider": "disk"}}}


def test_everything_that_a_flow_orders_of_extensions_is_required():
    subject = shoot(
        {"type": "asked"},
        networking={"type": "flannel"},
        dns={"providers": [{"type": "unmanaged"}, {"type": "other"}]},
    )
    runtime = {"containerRuntimes": [{"type": "gvisor"}]}
    subject["spec"]["provider"]["workers"][0]["cri"] = runtime
    assert required_pairs(subject, SEED, [registration(autoEnable=["shoot"])]) == {
        ("Extension", "asked"),
        ("Extension", "local-ext"),
        ("DNSRecord", "rfc2136"),
        ("DNSRecord", "other"),
        ("BackupEntry", "disk"),
        ("ControlPlane", "local"),
        ("Infrastructure", "local"),
        ("Worker", "local"),
        ("Network", "flannel"),
        ("OperatingSystemConfig", "local"),
        ("ContainerRuntime", "gvisor"),
    }


def test_a_shoot_without_workers_requires_no_provider():
    assert required_pairs(shoot(workers=False), {"spec": {}}, []) == set()


def test_only_the_primary_registration_is_responsible():
    registered = [registration("one", primary=False), registration("two")]
    assert responsible(registered) == {("Extension", "local-ext"): "two"}
