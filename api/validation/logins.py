"""Validation of the files with which an owner chooses logins of a Shoot: issuers of tokens, and webhooks to ask.

An owner writes an AuthenticationConfiguration and an AuthorizationConfiguration into ConfigMaps of the project, and
kubeconfigs of webhooks into Secrets. The API server reads them when it starts, and again when they change. If it
refuses a file then, it does not start, or goes on with the file of before and says so in its log only. So each rule of
the API server is checked here, except for the expressions (``expressions``). Source: spec/api-core.md 1.3, 10.1.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import yaml
from cryptography import x509
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from api.core.v1beta1.shoot import AdmissionPlugin, Shoot
from api.durations import parse_duration
from api.validation.field import Faults, Path

CONFIG_KEY = "config.yaml"
"""Key of a ConfigMap with either configuration."""
KUBECONFIG_KEY = "kubeconfig"
"""Key of a Secret with the kubeconfig of a webhook."""
NODE, RBAC = "node", "rbac"
"""Names of the authorizers that every API server has; see ``activities.components.apiserver``."""
HEALTH_PATHS = ("/healthz", "/livez", "/readyz")
"""Paths that anonymous clients may read on every API server: probes have no credentials."""

_GROUP = "apiserver.config.k8s.io"
_LARGEST = 256 * 1024
"""Bytes of the largest file. A longer one would keep admission busy for seconds."""
_LONGEST_TIMEOUT = timedelta(seconds=30)
_MOST_ISSUERS = 64
_MOST_CONDITIONS = 64
_RESERVED_DOMAINS = ("k8s.io", "kubernetes.io")
_INTERNAL_DOMAINS = ("localhost", "svc", "cluster.local", "google.internal")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class _File(BaseModel):
    """A part of a configuration file. Unknown fields and values of other types are refused, as the API server does."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", strict=True, frozen=True)


class AnonymousCondition(_File):
    path: str


class Anonymous(_File):
    enabled: bool
    conditions: list[AnonymousCondition] = Field(default_factory=list)


class Issuer(_File):
    url: str = ""
    discovery_url: str = Field(default="", alias="discoveryURL")
    certificate_authority: str = ""
    audiences: list[str] = Field(default_factory=list)
    audience_match_policy: Literal["", "MatchAny"] = ""
    egress_selector_type: Literal["", "controlplane", "cluster"] = ""


class ClaimValidationRule(_File):
    claim: str = ""
    required_value: str = ""
    expression: str = ""
    message: str = ""


class PrefixedClaim(_File):
    claim: str = ""
    prefix: str | None = None
    expression: str = ""


class Claim(_File):
    claim: str = ""
    expression: str = ""


class ExtraMapping(_File):
    key: str = ""
    value_expression: str = ""


class ClaimMappings(_File):
    username: PrefixedClaim = PrefixedClaim()
    groups: PrefixedClaim = PrefixedClaim()
    uid: Claim = Claim()
    extra: list[ExtraMapping] = Field(default_factory=list)


class UserValidationRule(_File):
    expression: str = ""
    message: str = ""


class JWTAuthenticator(_File):
    issuer: Issuer = Issuer()
    claim_validation_rules: list[ClaimValidationRule] = Field(default_factory=list)
    claim_mappings: ClaimMappings = ClaimMappings()
    user_validation_rules: list[UserValidationRule] = Field(default_factory=list)


class AuthenticationConfiguration(_File):
    api_version: str
    kind: Literal["AuthenticationConfiguration"]
    jwt: list[JWTAuthenticator] = Field(default_factory=list)
    anonymous: Anonymous | None = None


class MatchCondition(_File):
    expression: str = ""


class Webhook(_File):
    authorized_ttl: str = Field(default="", alias="authorizedTTL")
    cache_authorized_requests: bool | None = None
    unauthorized_ttl: str = Field(default="", alias="unauthorizedTTL")
    cache_unauthorized_requests: bool | None = None
    timeout: str = ""
    subject_access_review_version: Literal["", "v1", "v1beta1"] = ""
    match_condition_subject_access_review_version: Literal["", "v1"] = ""
    failure_policy: Literal["", "NoOpinion", "Deny"] = ""
    connection_info: Any = None
    match_conditions: list[MatchCondition] = Field(default_factory=list)


class Authorizer(_File):
    type: str = ""
    name: str = ""
    webhook: Webhook | None = None


class AuthorizationConfiguration(_File):
    api_version: str
    kind: Literal["AuthorizationConfiguration"]
    authorizers: list[Authorizer] = Field(default_factory=list)


M = TypeVar("M", AuthenticationConfiguration, AuthorizationConfiguration)


def wire(model: BaseModel) -> dict[str, Any]:
    """The fields that an owner has set, as JSON."""
    return model.model_dump(by_alias=True, exclude_unset=True)


def without_users_of(authenticator: Mapping[str, Any], *prefixes: str) -> dict[str, Any]:
    """The authenticator with rules that refuse a user whose name, or the name of a group, begins with a prefix."""
    rules = list(authenticator.get("userValidationRules") or ())
    known = {each["expression"] for each in rules}  # the API server refuses an expression that comes twice
    for prefix in prefixes:
        reserved = f"begins with {prefix}, which is reserved for the cluster"
        for expression, message in (
            (f"!user.username.startsWith('{prefix}')", f"the name {reserved}"),
            (f"user.groups.all(group, !group.startsWith('{prefix}'))", f"the name of a group {reserved}"),
        ):
            rules += [{"expression": expression, "message": message}] if expression not in known else []
    return {**authenticator, "userValidationRules": rules}


def parse_authentication(text: str, minor: int) -> tuple[AuthenticationConfiguration | None, Faults]:
    """Decode an AuthenticationConfiguration for Kubernetes 1.``minor``. None if it has faults of form."""
    return _parse(text, AuthenticationConfiguration, {"v1alpha1": 29, "v1beta1": 30, "v1": 34}, minor)


def parse_authorization(text: str, minor: int) -> tuple[AuthorizationConfiguration | None, Faults]:
    """Decode an AuthorizationConfiguration for Kubernetes 1.``minor``. None if it has faults of form."""
    return _parse(text, AuthorizationConfiguration, {"v1alpha1": 29, "v1beta1": 30, "v1": 32}, minor)


def _parse(text: str, model: type[M], versions: Mapping[str, int], minor: int) -> tuple[M | None, Faults]:
    faults = Faults()
    parsed = _load(text, faults)
    if parsed is None:
        return None, faults
    offered = [f"{_GROUP}/{version}" for version, first in versions.items() if minor >= first]
    if parsed.get("apiVersion") not in offered:
        faults.unsupported(Path("apiVersion"), parsed.get("apiVersion"), offered)
        return None, faults
    try:
        return model.model_validate(parsed), faults
    except ValidationError as error:
        for each in error.errors():
            unknown = each["type"] == "extra_forbidden"
            faults.forbidden(_path(each["loc"]), "is not a field of this file" if unknown else each["msg"])
        return None, faults


def _load(text: str, faults: Faults) -> dict[str, Any] | None:
    """The mapping in a file of YAML. Aliases and duplicate keys are refused."""
    root = Path("file")
    if not text.strip():
        faults.required(root, "is empty")
        return None
    if len(text.encode()) > _LARGEST:
        faults.forbidden(root, f"is longer than {_LARGEST} bytes")
        return None
    try:
        # Without this check, a file of 300 bytes becomes one of gigabytes once it is written out.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, _Loader)):
            faults.forbidden(root, "YAML aliases are not supported")
            return None
        parsed = yaml.load(text, _Loader)
    except (yaml.YAMLError, RecursionError, ValueError):
        # The text of the error quotes the file, and a kubeconfig holds credentials.
        faults.forbidden(root, "is not YAML, or has a key twice")
        return None
    if not isinstance(parsed, dict) or not all(isinstance(key, str) for key in parsed):
        faults.forbidden(root, "is not a mapping")
        return None
    return parsed


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # mypy cannot know which of them
    """Refuses duplicate keys, as the API server does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for index, key in enumerate(keys):
            if not isinstance(key, str) or key in keys[:index]:
                raise yaml.YAMLError("duplicate key")
        return dict(super().construct_mapping(node, deep))


def _path(loc: Iterable[int | str]) -> Path:
    path = Path("")
    for each in loc:
        path = path @ each if isinstance(each, int) else path / each
    return path


# Authentication


def check_authentication(
    config: AuthenticationConfiguration,
    *,
    minor: int,
    own_issuers: Collection[str],
    tunnel: bool,
    anonymous: bool,
    any_host: bool = False,
) -> Faults:
    """Faults of a configuration that the API server would refuse, or that would open the control plane.

    ``own_issuers``: issuers of the cluster's own service account tokens. ``tunnel``: whether the API server has a
    tunnel to the shoot's network. ``anonymous``: whether the Shoot sets ``enableAnonymousAuthentication``, too.
    ``any_host``: whether issuers may have addresses inside, because an operator names them.
    """
    faults, path = Faults(), Path("jwt")
    if len(config.jwt) > _MOST_ISSUERS:
        faults.forbidden(path, f"has more than {_MOST_ISSUERS} issuers")
        return faults
    for index, each in enumerate(config.jwt):
        here = path @ index
        _check_issuer(each.issuer, here / "issuer", minor, own_issuers, tunnel, any_host, faults)
        _check_rules(each, here, faults)
        _check_mappings(each.claim_mappings, here / "claimMappings", faults)
    for name, urls in (
        ("url", [each.issuer.url for each in config.jwt]),
        ("discoveryURL", [each.issuer.discovery_url for each in config.jwt]),
    ):
        for index, url in enumerate(urls):
            if url and url in urls[:index]:
                faults.duplicate(path @ index / "issuer" / name, url)
    _check_anonymous(config.anonymous, minor, anonymous, faults)
    return faults


def _check_anonymous(anonymous: Anonymous | None, minor: int, also_in_shoot: bool, faults: Faults) -> None:
    if anonymous is None:
        return
    path = Path("anonymous")
    if minor < 31:
        faults.forbidden(path, "needs Kubernetes 1.31 or later")
    if also_in_shoot:
        faults.forbidden(path, "excludes spec.kubernetes.kubeAPIServer.enableAnonymousAuthentication: take one out")
    if not anonymous.enabled:
        faults.forbidden(
            path / "enabled",
            f"must be true: probes of the control plane read {', '.join(HEALTH_PATHS)} without credentials. Without "
            "this section, anonymous clients may read these paths and nothing else",
        )
    for index, each in enumerate(anonymous.conditions):
        if not each.path.startswith("/"):
            faults.invalid(path / "conditions" @ index / "path", each.path, "must begin with /")


def _check_issuer(
    issuer: Issuer,
    path: Path,
    minor: int,
    own_issuers: Collection[str],
    tunnel: bool,
    any_host: bool,
    faults: Faults,
) -> None:
    if not issuer.url:
        faults.required(path / "url", "the issuer of the tokens")
    else:
        check_https(issuer.url, path / "url", faults, any_host=any_host)
    if issuer.url in own_issuers:
        faults.invalid(path / "url", issuer.url, "is an issuer of the cluster's own service account tokens")
    if issuer.discovery_url:
        check_https(issuer.discovery_url, path / "discoveryURL", faults, any_host=any_host)
        if issuer.discovery_url.rstrip("/") == issuer.url.rstrip("/"):
            faults.invalid(path / "discoveryURL", issuer.discovery_url, "must be different from url")
    if not issuer.audiences:
        faults.required(path / "audiences", "at least one")
    for index, audience in enumerate(issuer.audiences):
        if not audience:
            faults.required(path / "audiences" @ index, "must not be empty")
    faults.duplicates(path / "audiences", issuer.audiences)
    if len(issuer.audiences) > 1 and not issuer.audience_match_policy:
        faults.required(path / "audienceMatchPolicy", "must be MatchAny for several audiences")
    if issuer.certificate_authority:
        check_bundle(issuer.certificate_authority.encode(), path / "certificateAuthority", faults)
    if issuer.egress_selector_type and minor < 34:
        faults.forbidden(path / "egressSelectorType", "needs Kubernetes 1.34 or later")
    if issuer.egress_selector_type == "cluster" and not tunnel:
        faults.forbidden(path / "egressSelectorType", "a Shoot without workers has no network of its own")


def check_https(url: str, path: Path, faults: Faults, *, any_host: bool = False) -> None:
    """Faults of a URL to which a process of a control plane will connect because a tenant names it.

    ``any_host``: the host may be inside, because an operator names it.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        faults.invalid(path, url, "is not a URL")
        return
    if parts.scheme != "https":
        faults.invalid(path, url, "must be an https URL")
    elif parts.username is not None or parts.password is not None:
        faults.forbidden(path, "must not contain a user name or a password")
    elif parts.query or parts.fragment or url.endswith(("?", "#")):
        faults.invalid(path, url, "must have neither query nor fragment")
    elif (fault := host_fault(host)) and not (any_host and host):
        faults.invalid(path, url, f"host {host or 'is missing'}: {fault}" if host else "has no host")


def host_fault(host: str) -> str:
    """Why a tenant may not make a process of a control plane connect to a host; empty if the host may be public.

    A name may still resolve to an internal address. A process of ours also checks the address that it connects to.
    """
    host = host.rstrip(".").lower()
    if not host:
        return "is missing"
    try:
        return address_fault(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.split(".")
    if labels[-1].isdigit() or labels[-1].startswith("0x"):
        return "is a number, but no IP address in its usual form"
    if len(labels) == 1:
        return "has no domain, so it may name a Service of the seed"
    if not _SUBDOMAIN.fullmatch(host):
        # Clients take other letters for ASCII: a full stop of Japanese for a dot, and 127.0.0。1 for 127.0.0.1.
        return "is no DNS name in ASCII letters: write a name in other letters as xn--"
    if any(host == domain or host.endswith(f".{domain}") for domain in _INTERNAL_DOMAINS):
        return "is a name inside the seed or its machines"
    return ""


def address_fault(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Why a tenant may not make a process connect to an address of this kind; empty if it may."""
    address = reached_by(address)
    if address.is_loopback or address.is_unspecified:
        return "is an address of the machine itself"
    if address.is_link_local:
        return "is a link-local address, at which clouds serve credentials"
    if address.is_multicast:
        return "is a multicast address"
    return ""


def reached_by(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The IPv4 address that an IPv6 address stands for; the address itself if it stands for no other one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def check_bundle(pem: bytes, path: Path, faults: Faults) -> None:
    """Faults of a bundle of CA certificates."""
    try:
        if x509.load_pem_x509_certificates(pem):
            return
    except ValueError:
        pass
    faults.forbidden(path, "is not a bundle of certificates in PEM format")


def _check_rules(authenticator: JWTAuthenticator, path: Path, faults: Faults) -> None:
    rules = authenticator.claim_validation_rules
    for index, rule in enumerate(rules):
        here = path / "claimValidationRules" @ index
        if bool(rule.claim) == bool(rule.expression):
            faults.required(here, "either claim or expression")
        elif rule.claim and rule.message:
            faults.forbidden(here / "message", "goes with expression only")
        elif rule.expression and rule.required_value:
            faults.forbidden(here / "requiredValue", "goes with claim only")
    for name, values in (
        ("claim", [rule.claim for rule in rules]),
        ("expression", [rule.expression for rule in rules]),
    ):
        _duplicates(path / "claimValidationRules", name, values, faults)
    users = [rule.expression for rule in authenticator.user_validation_rules]
    for index, expression in enumerate(users):
        if not expression:
            faults.required(path / "userValidationRules" @ index / "expression", "must not be empty")
    _duplicates(path / "userValidationRules", "expression", users, faults)


def _duplicates(path: Path, name: str, values: list[str], faults: Faults) -> None:
    for index, value in enumerate(values):
        if value and value in values[:index]:
            faults.duplicate(path @ index / name, value)


def _check_mappings(mappings: ClaimMappings, path: Path, faults: Faults) -> None:
    for name, mapping in (("username", mappings.username), ("groups", mappings.groups)):
        here = path / name
        if mapping.claim and mapping.expression:
            faults.forbidden(here, "either claim or expression")
        elif not mapping.claim and not mapping.expression and name == "username":
            faults.required(here, "either claim or expression")
        elif mapping.claim and mapping.prefix is None:
            faults.required(here / "prefix", "goes with claim; an empty prefix is possible")
        elif mapping.expression and mapping.prefix is not None:
            faults.forbidden(here / "prefix", "goes with claim only")
    if mappings.uid.claim and mappings.uid.expression:
        faults.forbidden(path / "uid", "either claim or expression")
    for index, extra in enumerate(mappings.extra):
        here = path / "extra" @ index
        domain, _, rest = extra.key.partition("/")
        if not _SUBDOMAIN.fullmatch(domain) or not rest or extra.key != extra.key.lower():
            faults.invalid(here / "key", extra.key, "must be a domain, a slash and a name, in lower case")
        if any(domain == each or domain.endswith(f".{each}") for each in _RESERVED_DOMAINS):
            faults.forbidden(here / "key", f"{domain} is reserved for Kubernetes")
        if not extra.value_expression:
            faults.required(here / "valueExpression", "must not be empty")
    _duplicates(path / "extra", "key", [extra.key for extra in mappings.extra], faults)


# Authorization


def check_authorization(
    config: AuthorizationConfiguration, *, minor: int, kubeconfigs: Collection[str] | None
) -> Faults:
    """Faults of a list of webhooks. The API server asks them after its authorizers Node and RBAC, never in their place.

    ``kubeconfigs``: names of the authorizers for which the Shoot names a Secret; None: this is not checked.
    """
    faults, path = Faults(), Path("authorizers")
    if not config.authorizers:
        faults.required(path, "at least one webhook")
    for index, each in enumerate(config.authorizers):
        here = path @ index
        if each.type != "Webhook":
            detail = "only Webhook can be added; the API server has its authorizers Node and RBAC in any case"
            faults.unsupported(here / "type", each.type, ["Webhook"], detail)
            continue
        if not _SUBDOMAIN.fullmatch(each.name):
            faults.invalid(here / "name", each.name, "must be a DNS subdomain")
        elif each.name in (NODE, RBAC):
            faults.forbidden(here / "name", f"{each.name} is the name of an authorizer that the API server has")
        elif kubeconfigs is not None and each.name not in kubeconfigs:
            faults.required(
                here / "name",
                f"the Shoot names no Secret for {each.name}: add it to "
                "spec.kubernetes.kubeAPIServer.structuredAuthorization.kubeconfigs",
            )
        if each.webhook is None:
            faults.required(here / "webhook", "settings of the webhook")
        else:
            _check_webhook(each.webhook, here / "webhook", minor, faults)
    _duplicates(path, "name", [each.name for each in config.authorizers], faults)
    return faults


def _check_webhook(webhook: Webhook, path: Path, minor: int, faults: Faults) -> None:
    if webhook.connection_info is not None:
        faults.forbidden(
            path / "connectionInfo", "must not be set: the connection comes from the Secret that the Shoot names"
        )
    for name, text, most in (
        ("timeout", webhook.timeout, _LONGEST_TIMEOUT),
        ("authorizedTTL", webhook.authorized_ttl, None),
        ("unauthorizedTTL", webhook.unauthorized_ttl, None),
    ):
        _check_duration(text, most, path / name, faults)
    if not webhook.subject_access_review_version:
        faults.required(path / "subjectAccessReviewVersion", "v1 or v1beta1")
    if not webhook.failure_policy:
        faults.required(path / "failurePolicy", "NoOpinion or Deny")
    if webhook.match_conditions and not webhook.match_condition_subject_access_review_version:
        faults.required(path / "matchConditionSubjectAccessReviewVersion", "v1, for matchConditions")
    caches = {
        "cacheAuthorizedRequests": webhook.cache_authorized_requests,
        "cacheUnauthorizedRequests": webhook.cache_unauthorized_requests,
    }
    for name, value in caches.items():
        if value is not None and minor < 34:
            faults.forbidden(path / name, "needs Kubernetes 1.34 or later")
    if len(webhook.match_conditions) > _MOST_CONDITIONS:
        faults.forbidden(path / "matchConditions", f"has more than {_MOST_CONDITIONS} conditions")
        return
    expressions = [each.expression for each in webhook.match_conditions]
    for index, expression in enumerate(expressions):
        if not expression.strip():
            faults.required(path / "matchConditions" @ index / "expression", "must not be empty")
    _duplicates(path / "matchConditions", "expression", expressions, faults)


def _check_duration(text: str, most: timedelta | None, path: Path, faults: Faults) -> None:
    if not text:
        faults.required(path, "a duration such as 30s")
        return
    try:
        duration = parse_duration(text)
    except ValueError:
        faults.invalid(path, text, "is not a duration such as 30s")
        return
    if duration <= timedelta() or (most is not None and duration > most):
        limit = f" and at most {int(most.total_seconds())}s" if most else ""
        faults.invalid(path, text, f"must be more than 0s{limit}")


# Fields of the Shoot


def check_fields(shoot: Shoot) -> Faults:
    """Faults of the fields that name ConfigMaps and Secrets of logins."""
    faults = Faults()
    server, path = shoot.spec.kubernetes.kube_api_server, Path("spec") / "kubernetes" / "kubeAPIServer"
    if server is None:
        return faults
    if (authorization := server.structured_authorization) is not None:
        kubeconfigs = authorization.kubeconfigs or []
        here = path / "structuredAuthorization" / "kubeconfigs"
        if not kubeconfigs:
            faults.required(here, "the Secret with the kubeconfig of each webhook")
        faults.duplicates(here, [each.authorizer_name for each in kubeconfigs], "authorizerName")
    copied = {each.resource_ref.name for each in shoot.spec.resources or [] if each.resource_ref.kind == "Secret"}
    for index, plugin in enumerate(server.admission_plugins or []):
        here, secret = path / "admissionPlugins" @ index, plugin.kubeconfig_secret_name
        if secret and plugin.name not in PLUGINS_WITH_KUBECONFIG:
            detail = f"{plugin.name} reads no kubeconfig; these plugins do: {', '.join(PLUGINS_WITH_KUBECONFIG)}"
            faults.forbidden(here / "kubeconfigSecretName", detail)
        elif secret and secret not in copied:
            faults.invalid(here / "kubeconfigSecretName", secret, "must also be in spec.resources")
        _check_plugin_config(plugin, here / "config", faults)
    return faults


def _check_plugin_config(plugin: AdmissionPlugin, path: Path, faults: Faults) -> None:
    """Faults of the settings by which a plugin finds its kubeconfig: the control plane sets them."""
    if plugin.name not in PLUGINS_WITH_KUBECONFIG or plugin.disabled:
        return
    config = plugin.config
    if config is not None and not isinstance(config, dict):
        faults.forbidden(path, "is not a mapping")
        return
    settings = config or {}
    if plugin.name == "ImagePolicyWebhook":
        path, settings = path / "imagePolicy", settings.get("imagePolicy") or {}
        if not plugin.kubeconfig_secret_name:
            faults.required(path, "ImagePolicyWebhook needs kubeconfigSecretName")
    if not isinstance(settings, dict):
        faults.forbidden(path, "is not a mapping")
    elif "kubeConfigFile" in settings:
        faults.forbidden(path / "kubeConfigFile", "names a file of the control plane: use kubeconfigSecretName")


# Kubeconfigs of webhooks

_CLUSTER = frozenset({"server", "certificate-authority-data", "tls-server-name", "disable-compression", "extensions"})
_USER = frozenset({"token", "client-certificate-data", "client-key-data", "username", "password", "extensions"})
_DANGEROUS = frozenset(
    {
        *("exec", "auth-provider", "tokenFile", "client-certificate", "client-key", "certificate-authority"),
        "insecure-skip-tls-verify",
    }
)
_CONTEXT = frozenset({"cluster", "user", "namespace", "extensions"})


PLUGINS_WITH_KUBECONFIG = ("ImagePolicyWebhook", "MutatingAdmissionWebhook", "ValidatingAdmissionWebhook")
"""Admission plugins that read a kubeconfig. The other plugins would ignore it."""


def plugin_connects(plugin: str) -> bool:
    """Whether the kubeconfig of an admission plugin names the server; else it holds credentials for webhooks only."""
    return plugin == "ImagePolicyWebhook"


def parse_kubeconfig(text: str, *, connects: bool) -> tuple[dict[str, Any] | None, Faults]:
    """A tenant's kubeconfig with which an API server reaches a webhook, and its faults.

    It holds its credentials and CA certificates itself. Refused are programs, files, proxies and connections that are
    not verified: the API server would run, read or use them inside the control plane. ``connects``: the kubeconfig
    names the server, in its current context; admission plugins take only credentials from it.

    No fault quotes the kubeconfig.
    """
    faults = Faults()
    parsed = _load(text, faults)
    if parsed is None:
        return None, faults
    kept: dict[str, Any] = {"apiVersion": "v1", "kind": "Config"}
    for group, inner, known in (
        ("clusters", "cluster", _CLUSTER),
        ("users", "user", _USER),
        ("contexts", "context", _CONTEXT),
    ):
        kept[group] = _entries(parsed.get(group), group, inner, known, faults)
    current = parsed.get("current-context")
    if isinstance(current, str):
        kept["current-context"] = current
    for index, each in enumerate(kept["clusters"]):
        _check_cluster(each["cluster"], Path("clusters") @ index / "cluster", faults)
    for index, each in enumerate(kept["users"]):
        _check_user(each["user"], Path("users") @ index / "user", faults)
    if connects:
        _check_context(kept, faults)
    return (None if faults else kept), faults


def check_kubeconfig(text: str) -> Faults:
    """Faults of any kubeconfig that a project keeps in a Secret: programs, files, and unverified connections.

    A process that reads such a Secret would run the program, read the file, or send credentials to a server that
    it has not verified.
    """
    faults = Faults()
    parsed = _load(text, faults)
    for group, inner in (("clusters", "cluster"), ("users", "user")):
        entries = (parsed or {}).get(group)
        for index, each in enumerate(entries if isinstance(entries, list) else ()):
            found = each.get(inner) if isinstance(each, dict) else None
            content: dict[Any, Any] = found if isinstance(found, dict) else {}
            for name in sorted(_DANGEROUS & content.keys()):
                if content[name]:
                    faults.forbidden(Path(group) @ index / inner / name, _why_not(name))
    return faults


def _entries(found: Any, group: str, inner: str, known: frozenset[str], faults: Faults) -> list[dict[str, Any]]:
    path, kept = Path(group), []
    if found is None:
        return []
    if not isinstance(found, list):
        faults.forbidden(path, "is not a list")
        return []
    for index, each in enumerate(found):
        here = path @ index
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            faults.required(here / "name", "of the entry")
            continue
        content = each.get(inner) or {}
        if not isinstance(content, dict):
            faults.forbidden(here / inner, "is not a mapping")
            continue
        for name in sorted(map(str, content.keys() - known)):
            faults.forbidden(here / inner / name, _why_not(name))
        kept.append({"name": each["name"], inner: {k: v for k, v in content.items() if k in known - {"extensions"}}})
    faults.duplicates(path, [each["name"] for each in kept], "name")
    return kept


def _why_not(name: str) -> str:
    """Why a field of a kubeconfig is refused."""
    match name:
        case "exec" | "auth-provider":
            return "runs a program in the control plane: put a token or a client certificate into the kubeconfig"
        case "tokenFile" | "client-certificate" | "client-key" | "certificate-authority":
            field = "token" if name == "tokenFile" else f"{name}-data"
            return f"names a file of the control plane: use {field}"
        case "insecure-skip-tls-verify":
            return "the server must be verified: use certificate-authority-data"
        case "proxy-url":
            return "connections through a proxy are not supported"
        case _:
            return "is not supported"


def _check_cluster(cluster: Mapping[str, Any], path: Path, faults: Faults) -> None:
    server = cluster.get("server")
    if isinstance(server, str) and server:
        check_https(server, path / "server", faults)
    elif server is not None:
        faults.forbidden(path / "server", "is not a URL")
    if (bundle := _decoded(cluster, "certificate-authority-data", path, faults)) is not None:
        check_bundle(bundle, path / "certificate-authority-data", faults)


def _check_user(user: Mapping[str, Any], path: Path, faults: Faults) -> None:
    if "client-certificate-data" in user or "client-key-data" in user:
        certificate = _decoded(user, "client-certificate-data", path, faults)
        key = _decoded(user, "client-key-data", path, faults)
        if certificate is None or key is None:
            faults.required(path, "client-certificate-data and client-key-data go together")
        else:
            check_bundle(certificate, path / "client-certificate-data", faults)
    for name in ("token", "username", "password"):
        if not isinstance(user.get(name, ""), str):
            faults.forbidden(path / name, "is not a text")


def _decoded(section: Mapping[str, Any], name: str, path: Path, faults: Faults) -> bytes | None:
    if (encoded := section.get(name)) in (None, ""):
        return None
    try:
        return base64.b64decode(str(encoded), validate=True)
    except (binascii.Error, ValueError):
        faults.forbidden(path / name, "is not base64")
        return None


def _check_context(config: Mapping[str, Any], faults: Faults) -> None:
    """Faults of the current context: it must name a cluster with a server, and a user if any."""
    path = Path("current-context")
    context = _named(config["contexts"], "context", config.get("current-context"))
    if context is None:
        faults.required(path, "the name of a context of the kubeconfig")
        return
    cluster = _named(config["clusters"], "cluster", context.get("cluster"))
    if cluster is None or not cluster.get("server"):
        faults.required(path, "its context names no cluster with a server")
    if context.get("user") and _named(config["users"], "user", context["user"]) is None:
        faults.required(path, "its context names a user that the kubeconfig does not have")


def _named(entries: Iterable[Mapping[str, Any]], inner: str, name: Any) -> Mapping[str, Any] | None:
    return next((each[inner] for each in entries if each["name"] == name), None)
