"""A ControllerDeployment is converted between its versions without a loss, or refused with the reason."""

import base64
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.decisions.controller_deployments import Unconvertible, converted
from api.validation.controllers import check_controller_deployment

OLD, NEW = "core.gardener.cloud/v1beta1", "core.gardener.cloud/v1"
MIGRATION = "migration.controllerdeployment.gardener.cloud/"
CHART = base64.b64encode(b"a chart").decode()
REPOSITORY = {"repository": "registry.example.org/charts/local", "tag": "v1.2.3"}


def deployment(version: str, annotations: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "provider-local", "uid": "1"}
    if annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": version, "kind": "ControllerDeployment", "metadata": metadata, **fields}


def named(name: str, kind: str = "Secret") -> dict[str, Any]:
    return {"name": name, "resourceRef": {"apiVersion": "v1", "kind": kind, "name": "pull"}}


def test_a_chart_of_the_older_version_is_the_field_helm_of_the_newer():
    values = {"replicas": 2, "image": {"tag": None}}
    old = deployment(OLD, {"a": "b"}, type="helm", providerConfig={"chart": CHART, "values": values})
    new = deployment(NEW, {"a": "b"}, helm={"rawChart": CHART, "values": values})
    assert converted(old, NEW) == new
    assert converted(new, OLD) == old


def test_another_type_is_kept_in_annotations():
    old = deployment(OLD, {"a": "b"}, type="custom", providerConfig={"any": ["thing"]}, injectGardenKubeconfig=True)
    new = converted(old, NEW)
    kept = {"a": "b", f"{MIGRATION}type": "custom", f"{MIGRATION}providerConfig": '{"any":["thing"]}'}
    assert new == deployment(NEW, kept, injectGardenKubeconfig=True)
    assert converted(new, OLD) == old


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
JSON = st.recursive(SCALARS, lambda each: st.lists(each) | st.dictionaries(st.text(), each), max_leaves=8)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=3)
CHARTS = st.binary(min_size=1).map(lambda content: base64.b64encode(content).decode())
TEXTS = st.text(min_size=1, max_size=20)
REFERENCES = st.fixed_dictionaries({"name": TEXTS})
REPOSITORIES = st.fixed_dictionaries(
    {},
    optional={
        "ref": TEXTS,
        "repository": TEXTS,
        "tag": TEXTS,
        "digest": st.from_regex(r"sha256:[0-9a-f]{64}", fullmatch=True) | TEXTS,
        "pullSecretRef": REFERENCES,
        "caBundleSecretRef": REFERENCES | OBJECTS,
    },
)
COMMON = st.fixed_dictionaries(
    {},
    optional={
        "injectGardenKubeconfig": st.booleans(),
        "resources": st.lists(st.fixed_dictionaries({"name": TEXTS}), max_size=2),
    },
)
ANNOTATIONS = st.dictionaries(st.text(min_size=1), st.text(), max_size=2)


@st.composite
def olds(draw: st.DrawFn) -> dict[str, Any]:
    """Any object that the schema of v1beta1 allows: its providerConfig has no schema."""
    near = st.fixed_dictionaries({}, optional={"chart": CHARTS | JSON, "values": JSON, "ociRepository": REPOSITORIES})
    config = draw(st.none() | near | OBJECTS)
    fields = {"type": draw(st.sampled_from(["helm", "custom"]) | st.text()), **draw(COMMON)}
    return deployment(OLD, draw(ANNOTATIONS), **fields, **({} if config is None else {"providerConfig": config}))


@st.composite
def news(draw: st.DrawFn) -> dict[str, Any]:
    helm = draw(
        st.fixed_dictionaries({}, optional={"rawChart": CHARTS, "values": OBJECTS, "ociRepository": REPOSITORIES})
    )
    return deployment(NEW, draw(ANNOTATIONS), helm=helm, **draw(COMMON))


@given(olds())
def test_an_object_of_the_older_version_survives_the_way_to_the_newer_and_back(old: dict[str, Any]):
    """The API server stores the newer version: what the conversion loses is lost for good."""
    before = copy.deepcopy(old)
    new = json.loads(json.dumps(converted(old, NEW)))
    assert "type" not in new
    assert "providerConfig" not in new
    assert converted(new, OLD) == before
    assert old == before, "the conversion changes no input"


@given(news())
def test_an_object_of_the_newer_version_survives_the_way_to_the_older_and_back_or_is_refused(new: dict[str, Any]):
    try:
        old = converted(new, OLD)
    except Unconvertible:
        assert check_controller_deployment({**new, "resources": []}), "admission refuses it, so none is stored"
    else:
        assert converted(json.loads(json.dumps(old)), NEW) == new


@pytest.mark.parametrize(
    ("obj", "version", "why"),
    [
        (deployment(NEW), OLD, "helm: is missing, and so is annotation"),
        (deployment(NEW, {f"{MIGRATION}type": "custom"}, helm={}), OLD, "excludes helm: remove one of them"),
        (deployment(NEW, {f"{MIGRATION}providerConfig": "{}"}), OLD, f"needs annotation {MIGRATION}type"),
        (
            deployment(NEW, {f"{MIGRATION}type": "custom", f"{MIGRATION}providerConfig": "[]"}),
            OLD,
            f"metadata.annotations[{MIGRATION}providerConfig]: is no JSON object",
        ),
        (
            deployment(NEW, {f"{MIGRATION}type": "helm", f"{MIGRATION}providerConfig": f'{{"chart":"{CHART}"}}'}),
            OLD,
            "must not be helm: use field helm",
        ),
        (deployment(OLD, {f"{MIGRATION}type": "x"}, type="custom"), NEW, "is for objects of core.gardener.cloud/v1"),
        (deployment(OLD, type="custom", providerConfig={"a": "x" * 256 * 1024}), NEW, "is too large for an annotation"),
        (deployment(OLD, type="custom"), "core.gardener.cloud/v2", "apiVersion: there is no conversion from"),
        ({**deployment(OLD), "kind": "Shoot"}, NEW, "kind: 'Shoot' has one version only"),
    ],
)
def test_an_object_that_contradicts_itself_is_not_converted(obj: dict[str, Any], version: str, why: str):
    with pytest.raises(Unconvertible) as refused:
        converted(obj, version)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("obj", "fault"),
    [
        (deployment(NEW, helm={}), "helm: Required value: must have either rawChart or ociRepository"),
        (deployment(NEW), "helm: Required value: must say which chart to deploy"),
        (
            deployment(NEW, helm={"rawChart": CHART, "ociRepository": REPOSITORY}),
            "helm: Required value: must have either rawChart or ociRepository",
        ),
        (
            deployment(OLD, type="helm", providerConfig={"values": {}}),
            "providerConfig: Required value: must have either chart or ociRepository",
        ),
        (deployment(OLD, type="helm"), "providerConfig: Invalid value: null: must be an object with chart"),
        (
            deployment(OLD, type="helm", providerConfig={"chart": CHART, "vlaues": {}}),
            "vlaues: unknown field: chart, values and ociRepository are known",
        ),
        (deployment(OLD, type="helm", providerConfig={"chart": "no base64"}), "chart: must be base64"),
        (deployment(OLD, type="helm", providerConfig={"chart": CHART, "values": 3}), "values: "),
        (
            deployment(OLD, type="helm", providerConfig={"ociRepository": {**REPOSITORY, "tga": "x"}}),
            "ociRepository: unknown field tga",
        ),
        (deployment(OLD, type="kustomize"), 'type: Unsupported value: "kustomize"'),
        (
            deployment(OLD, {f"{MIGRATION}type": "x"}, type="custom"),
            f"metadata.annotations[{MIGRATION}type]: Forbidden: is for objects of core.gardener.cloud/v1",
        ),
        (
            deployment(NEW, {f"{MIGRATION}type": "custom"}, helm={"rawChart": CHART}),
            f"metadata.annotations[{MIGRATION}type]: Forbidden: excludes helm",
        ),
        (
            deployment(NEW, helm={"ociRepository": {"ref": "registry.example.org/a:v1", "tag": "v1"}}),
            "helm.ociRepository.ref: Forbidden: excludes tag and digest",
        ),
        (
            deployment(NEW, helm={"ociRepository": {"repository": "registry.example.org/a"}}),
            "helm.ociRepository: Required value: repository needs either tag or digest",
        ),
        (deployment(NEW, helm={"ociRepository": {"ref": "a b"}}), 'helm.ociRepository.ref: Invalid value: "a b"'),
        (
            deployment(NEW, helm={"ociRepository": {"tag": "v1"}}),
            "helm.ociRepository: Required value: must have either ref or repository",
        ),
        (
            deployment(NEW, helm={"rawChart": CHART}, resources=[named("a-b"), named("c"), named("c")]),
            'resources[2].name: Duplicate value: "c"',
        ),
        (
            deployment(NEW, helm={"rawChart": CHART}, resources=[named("a", "Pod")]),
            'resources[0].resourceRef.kind: Unsupported value: "Pod"',
        ),
        (
            deployment(NEW, helm={"rawChart": CHART}, resources=[named("a-b")]),
            'resources[0].name: Invalid value: "a-b": must have letters and digits alone',
        ),
    ],
)
def test_a_fault_is_named_by_the_field_of_the_version_that_was_written(obj: dict[str, Any], fault: str):
    assert fault in str(check_controller_deployment(obj))


@pytest.mark.parametrize(
    "obj",
    [
        deployment(NEW, helm={"rawChart": CHART, "values": {}}, resources=[named("pull1")]),
        deployment(NEW, helm={"ociRepository": REPOSITORY}),
        deployment(NEW, helm={"ociRepository": {"ref": "registry.example.org:5000/charts/local:v1"}}),
        deployment(OLD, type="helm", providerConfig={"chart": CHART}),
        deployment(OLD, type="custom"),
        converted(deployment(OLD, type="custom", providerConfig={"a": 1}), NEW),
    ],
)
def test_a_deployment_without_a_fault_is_accepted(obj: dict[str, Any]):
    assert str(check_controller_deployment(obj)) == "[]"
