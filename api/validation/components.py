"""Values of settings that become flags, lists or files of a component, which would refuse or misread them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from api.core.v1beta1.shoot import KubeAPIServer, ShootSpec
from api.decisions.versions import is_version
from api.kubernetes_versions import release
from api.validation.field import Faults, Path
from api.validation.values import check_word, domain_fault, key_fault

_SPEC = Path("spec")
_PLURAL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NOT_STORED = ("apiserveripinfo", "serviceipallocations", "servicenodeportallocations")
"""Names in etcd that are no resources of the API."""


def check_component_values(spec: ShootSpec, faults: Faults) -> None:
    kubernetes, path = spec.kubernetes, _SPEC / "kubernetes"
    if kubernetes.kube_api_server is not None:
        _check_api_server(kubernetes.kube_api_server, kubernetes.version, path / "kubeAPIServer", faults)
    if (autoscaler := kubernetes.cluster_autoscaler) is not None:
        here = path / "clusterAutoscaler"
        for name, taints in {
            "ignoreTaints": autoscaler.ignore_taints,
            "startupTaints": autoscaler.startup_taints,
            "statusTaints": autoscaler.status_taints,
        }.items():
            for index, taint in enumerate(taints or []):
                if fault := key_fault(taint):
                    faults.invalid(here / name @ index, taint, f"{fault}: it is the key of a taint")
            faults.duplicates(here / name, taints or [])
    scheduler = kubernetes.kube_scheduler
    if scheduler and scheduler.kube_max_pd_vols is not None and not scheduler.kube_max_pd_vols.isdecimal():
        faults.invalid(path / "kubeScheduler" / "kubeMaxPDVols", scheduler.kube_max_pd_vols, "must be a number")
    dns = spec.system_components.core_dns if spec.system_components else None
    suffixes = dns.rewriting.common_suffixes if dns and dns.rewriting else None
    here = _SPEC / "systemComponents" / "coreDNS" / "rewriting" / "commonSuffixes"
    faults.duplicates(here, suffixes or [])
    for index, suffix in enumerate(suffixes or []):
        name = suffix.removeprefix(".")
        if "." not in name or domain_fault(name):
            detail = "must be a part of a DNS name with at least one dot that is not at its ends, like .example.org"
            faults.invalid(here @ index, suffix, detail)


def _check_api_server(server: KubeAPIServer, version: str, path: Path, faults: Faults) -> None:
    if (encryption := server.encryption_config) is not None:
        check_encrypted(encryption.resources or [], version, path / "encryptionConfig" / "resources", faults)
    for index, audience in enumerate(server.api_audiences or []):
        check_word(audience, path / "apiAudiences" @ index, faults)
    if (accounts := server.service_account_config) is not None:
        here = path / "serviceAccountConfig"
        if accounts.issuer is not None:
            _check_issuer(accounts.issuer, here / "issuer", faults)
        accepted = accounts.accepted_issuers or []
        faults.duplicates(here / "acceptedIssuers", accepted)
        for index, issuer in enumerate(accepted):
            check_word(issuer, here / "acceptedIssuers" @ index, faults)
            if issuer == accounts.issuer:
                faults.invalid(here / "acceptedIssuers" @ index, issuer, "must be another one than issuer")
    sizes = server.watch_cache_sizes.resources if server.watch_cache_sizes else None
    for index, size in enumerate(sizes or []):
        here = path / "watchCacheSizes" / "resources" @ index
        if not _PLURAL.fullmatch(size.resource):
            faults.invalid(here / "resource", size.resource, "must be the plural name of a resource, like pods")
        if size.api_group and (fault := domain_fault(size.api_group)):
            faults.invalid(here / "apiGroup", size.api_group, fault)
    plugins = [each.name for each in server.admission_plugins or []]
    faults.duplicates(path / "admissionPlugins", plugins, "name")


def _check_issuer(issuer: str, path: Path, faults: Faults) -> None:
    try:
        parts = urlsplit(issuer)
        complete = parts.scheme == "https" and bool(parts.hostname) and not (parts.query or parts.fragment)
    except ValueError:
        complete = False
    if not complete or not issuer.isprintable() or " " in issuer or "," in issuer or "#" in issuer or "?" in issuer:
        faults.invalid(path, issuer, "must be an https URL without blanks, query and fragment")


def check_encrypted(resources: Sequence[str], version: str, path: Path, faults: Faults) -> None:
    """Faults of resources to encrypt: kube-apiserver does not start with some names, and ignores unknown ones."""
    known = release(version) if is_version(version) else None
    served = _by_group(known.api_versions) if known else {}
    faults.duplicates(path, resources)
    for index, text in enumerate(resources):
        here = path @ index
        resource, _, group = text.partition(".")
        if "*" in text:
            faults.invalid(here, text, "wildcards are not supported")
        elif text in ("secrets", "secrets."):
            faults.invalid(here, text, "secrets are always encrypted")
        elif not _PLURAL.fullmatch(resource) or (group and domain_fault(group)) or text.endswith("."):
            faults.invalid(here, text, "must be the plural name of a resource in lower case, like deployments.apps")
        elif resource in _NOT_STORED:
            faults.invalid(here, text, "is no resource of the API")
        elif group in ("events.k8s.io", "") and resource == "events":
            faults.invalid(here, text, "events are kept for a short time in an etcd of their own, and not encrypted")
        elif group in ("events.k8s.io", "extensions"):
            faults.invalid(here, text, f"nothing is stored in group {group}")
        elif group in served and resource not in served[group]:
            faults.invalid(here, text, f"Kubernetes {version} has no {resource} in group {group or 'v1'}")


def _by_group(api_versions: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """Plural names of the resources of each API group in any version; the core group is ``""``."""
    groups: dict[str, frozenset[str]] = {}
    for api, plurals in api_versions.items():
        group = api.rpartition("/")[0]
        groups[group] = groups.get(group, frozenset()) | plurals
    return groups
