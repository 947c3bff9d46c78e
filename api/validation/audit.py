"""Validation of the audit policy in an owner's ConfigMap: kube-apiserver does not start with a faulty policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from api.validation.field import Faults, Path
from api.validation.values import domain_fault
from api.validation.yaml_files import load_mapping

POLICY_KEY = "policy"
"""Key of the ConfigMap with the policy."""

_Stage = Literal["RequestReceived", "ResponseStarted", "ResponseComplete", "Panic"]


class _Part(BaseModel):
    """Part of a policy. Unknown fields and values of other types are refused, as kube-apiserver does."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Resources(_Part):
    group: str = ""
    resources: list[str] | None = None
    resourceNames: list[str] | None = None


class _Rule(_Part):
    level: Literal["None", "Metadata", "Request", "RequestResponse"]
    users: list[str] | None = None
    userGroups: list[str] | None = None
    verbs: list[str] | None = None
    resources: list[_Resources] | None = None
    namespaces: list[str] | None = None
    nonResourceURLs: list[str] | None = None
    omitStages: list[_Stage] | None = None
    omitManagedFields: bool | None = None


class _Policy(_Part):
    apiVersion: Literal["audit.k8s.io/v1"]
    kind: Literal["Policy"]
    metadata: dict[str, object] | None = None
    rules: list[_Rule] = Field(min_length=1)
    omitStages: list[_Stage] | None = None
    omitManagedFields: bool | None = None


def check_policy(text: str) -> Faults:
    """Faults of an audit policy in YAML, with paths in the policy. They quote no other value than the faulty one."""
    faults, root = Faults(), Path(POLICY_KEY)
    parsed = load_mapping(text, root, faults)
    if parsed is None:
        return faults
    try:
        policy = _Policy.model_validate(parsed)
    except ValidationError as error:
        for each in error.errors():
            path = Path(".".join(map(str, each["loc"]))) if each["loc"] else root
            if each["type"] == "missing":
                faults.required(path, "must be set")
            elif each["type"] == "extra_forbidden":
                faults.forbidden(path, "an audit policy has no such field")
            else:
                faults.invalid(path, _shown(each["input"]), each["msg"])
        return faults
    for index, rule in enumerate(policy.rules):
        _check_rule(rule, Path("rules") @ index, faults)
    return faults


def _shown(value: object) -> object:
    return value if isinstance(value, str | int | bool | None) else type(value).__name__


def _check_rule(rule: _Rule, path: Path, faults: Faults) -> None:
    urls = rule.nonResourceURLs or []
    _check_urls(urls, path / "nonResourceURLs", faults)
    if urls and (rule.resources or rule.namespaces):
        faults.invalid(path / "nonResourceURLs", urls, "a rule cannot have both resources and nonResourceURLs")
    for index, each in enumerate(rule.resources or []):
        here = path / "resources" @ index
        if each.group not in ("", "*") and (fault := domain_fault(each.group)):
            faults.invalid(here / "group", each.group, f"{fault}, without a version")
        if each.resourceNames and not each.resources:
            faults.invalid(here / "resourceNames", each.resourceNames, "needs resources beside it")


def _check_urls(urls: Sequence[str], path: Path, faults: Faults) -> None:
    for index, url in enumerate(urls):
        if url != "*" and not url.startswith("/"):
            faults.invalid(path @ index, url, "must begin with '/'")
        if "*" in url[:-1]:
            faults.invalid(path @ index, url, "'*' must be the last character")
