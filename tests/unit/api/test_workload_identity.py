"""WorkloadIdentities: subject, claims, references, and what validation says."""

from datetime import UTC, datetime
from typing import Any

import pytest

from api.decisions import workload_identity
from api.resources import SHOOT
from api.security.v1alpha1.workload_identity import WorkloadIdentity
from api.validation.field import Path
from api.validation.workload_identity import (
    check_no_identity,
    check_target_type,
    check_workload_identity,
    seed_refers,
    shoot_refers,
)

UID = "11111111-2222-3333-4444-555555555555"
METADATA = {"name": "cloud", "namespace": "garden-local", "uid": UID}
SECURITY = "security.gardener.cloud/v1alpha1"


def identity(type_: str = "aws", audiences: list[str] | None = None, name: str = "cloud") -> WorkloadIdentity:
    return WorkloadIdentity.of(
        {
            "metadata": {"name": name, "namespace": "garden-local"},
            "spec": {"audiences": ["a"] if audiences is None else audiences, "targetSystem": {"type": type_}},
        }
    )


def test_the_subject_names_namespace_name_and_uid() -> None:
    assert workload_identity.subject(METADATA) == f"gardener.cloud:workloadidentity:garden-local:cloud:{UID}"


@pytest.mark.parametrize("namespace", ["garden-local", "g", "n" * 63])
def test_the_longest_name_gives_a_subject_of_255_characters(namespace: str) -> None:
    name = "x" * workload_identity.longest_name(namespace)
    assert len(workload_identity.subject({"name": name, "namespace": namespace, "uid": UID})) == 255


def test_claims_hold_the_context_and_the_identity() -> None:
    now, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    found = {"metadata": METADATA, "spec": {"audiences": ["a", "b"]}}

    claims = workload_identity.claims(found, "https://x", now, end, "id", {"shoot": {"name": "demo"}})

    assert claims["aud"] == ["a", "b"]
    assert claims["gardener.cloud"] == {"workloadIdentity": METADATA, "shoot": {"name": "demo"}}
    assert (claims["iat"], claims["nbf"], claims["exp"]) == (1767225600, 1767225600, 1767312000)


def test_a_context_object_is_written_as_gardener_writes_it() -> None:
    text = workload_identity.context_object(SHOOT, {"name": "demo", "namespace": "garden-local", "uid": "u"})
    assert text == (
        '{"apiVersion":"core.gardener.cloud/v1beta1","kind":"Shoot","name":"demo","namespace":"garden-local","uid":"u"}'
    )


def bound(kind: str = "WorkloadIdentity", namespace: str = "garden-local", name: str = "cloud") -> dict[str, Any]:
    version = SECURITY if kind == "WorkloadIdentity" else "v1"
    reference = {"apiVersion": version, "kind": kind, "namespace": namespace, "name": name}
    return {"metadata": {"name": "b", "namespace": "garden-local"}, "credentialsRef": reference}


def shoot(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "demo", "namespace": "garden-local"}, "spec": {"kubernetes": {}, **spec}}


@pytest.mark.parametrize(
    ("spec", "binding", "refers"),
    [
        ({"credentialsBindingName": "b"}, bound(), True),
        ({"credentialsBindingName": "b"}, bound(kind="Secret"), False),
        ({"credentialsBindingName": "b"}, bound(name="other"), False),
        ({"credentialsBindingName": "b"}, bound(namespace="garden-other"), False),
        ({"credentialsBindingName": "b"}, None, False),
        (
            {"dns": {"providers": [{"credentialsRef": {"kind": "WorkloadIdentity", "name": "cloud"}}]}},
            None,
            True,
        ),
        ({"dns": {"providers": [{"credentialsRef": {"kind": "Secret", "name": "cloud"}}]}}, None, False),
        ({"resources": [{"resourceRef": {"kind": "WorkloadIdentity", "name": "cloud"}}]}, None, True),
        ({"resources": [{"resourceRef": {"kind": "ConfigMap", "name": "cloud"}}]}, None, False),
        ({}, bound(), False),
    ],
)
def test_by_which_fields_a_shoot_refers_to_an_identity(spec: Any, binding: Any, refers: bool) -> None:
    assert shoot_refers(shoot(**spec), binding, METADATA) is refers


def test_by_which_fields_a_seed_refers_to_an_identity() -> None:
    reference = bound()["credentialsRef"]
    for spec in (
        {"backup": {"credentialsRef": reference}},
        {"dns": {"provider": {"credentialsRef": reference}}},
        {"dns": {"internal": {"credentialsRef": reference}}},
        {"dns": {"defaults": [{"credentialsRef": reference}]}},
    ):
        assert seed_refers({"spec": spec}, METADATA)
    assert not seed_refers({"spec": {"backup": {}}}, METADATA)


@pytest.mark.parametrize(
    ("audiences", "said"),
    [
        (["a", "a"], 'spec.audiences[1]: Duplicate value: "a"'),
        ([" "], "spec.audiences[0]: Invalid value"),
        (["a\nb"], "without control characters"),
    ],
)
def test_audiences_are_distinct_texts(audiences: list[str], said: str) -> None:
    assert said in str(check_workload_identity(identity(audiences=audiences), None))


def test_the_type_of_the_target_never_changes() -> None:
    assert not check_workload_identity(identity(), identity(audiences=["b"]))
    assert "spec.targetSystem.type: Invalid value" in str(check_workload_identity(identity("gcp"), identity()))


def test_a_name_that_is_too_long_for_the_subject_is_refused_with_the_bound() -> None:
    longest = workload_identity.longest_name("garden-local")
    assert not check_workload_identity(identity(name="x" * longest), None)
    said = str(check_workload_identity(identity(name="x" * (longest + 1)), None))
    assert f"must have at most {longest} characters in namespace garden-local" in said


def test_a_reference_must_be_for_the_type_of_the_target() -> None:
    wire = {"spec": {"targetSystem": {"type": "aws"}}}
    assert not check_target_type(Path("credentialsRef"), wire, ["aws"])
    for types in (["gcp"], ["aws", "gcp"], []):
        said = str(check_target_type(Path("credentialsRef"), wire, types))
        assert "the WorkloadIdentity is for provider type aws" in said


def test_backups_name_no_workload_identity() -> None:
    path = Path("spec.credentialsRef")
    assert "backups with tokens of a WorkloadIdentity are not supported: name a Secret" in str(
        check_no_identity(path, bound()["credentialsRef"], "backups")
    )
    assert not check_no_identity(path, bound(kind="Secret")["credentialsRef"], "backups")
    assert not check_no_identity(path, None, "backups")
