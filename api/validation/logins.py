"""Validation of the files with which an owner chooses logins of a Shoot: issuers of tokens, and webhooks to ask.

An owner writes an AuthenticationConfiguration and an AuthorizationConfiguration into ConfigMaps of the project, and
kubeconfigs of webhooks into Secrets. The API server reads them when it starts, and again when they change. If it
refuses a file then, it does not start, or goes on with the file of before and says so in its log only. So each rule of
the API server is checked here, except for the expressions (``expressions``). Source: spec/api-core.md 1.3, 10.1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from api.constants import NODE_AGENT_AUTHORIZER
from api.core.v1beta1.shoot import AdmissionPlugin, Shoot
from api.durations import parse_duration
from api.validation.certificates import check_bundle
from api.validation.field import Faults, Path
from api.validation.hosts import check_https
from api.validation.values import SUBDOMAIN
from api.validation.yaml_files import load_mapping

CONFIG_KEY = "config.yaml"
"""Key of a ConfigMap with either configuration."""
NODE, RBAC = "node", "rbac"
"""Names of authorizers that every API server has; see ``activities.components.apiserver``."""
HEALTH_PATHS = ("/healthz", "/livez", "/readyz")
"""Paths that anonymous clients may read on every API server: probes have no credentials."""

_GROUP = "apiserver.config.k8s.io"
_LONGEST_TIMEOUT = timedelta(seconds=30)
_MOST_ISSUERS = 64
_MOST_CONDITIONS = 64
_RESERVED_DOMAINS = ("k8s.io", "kubernetes.io")


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
    parsed = load_mapping(text, Path("file"), faults)
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
        if not SUBDOMAIN.fullmatch(domain) or not rest or extra.key != extra.key.lower():
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
    """Faults of a list of webhooks. The API server asks them after its own authorizers, never in their place.

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
        if not SUBDOMAIN.fullmatch(each.name):
            faults.invalid(here / "name", each.name, "must be a DNS subdomain")
        elif each.name in (NODE, NODE_AGENT_AUTHORIZER, RBAC):
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


PLUGINS_WITH_KUBECONFIG = ("ImagePolicyWebhook", "MutatingAdmissionWebhook", "ValidatingAdmissionWebhook")
"""Admission plugins that read a kubeconfig. The other plugins would ignore it."""


def plugin_connects(plugin: str) -> bool:
    """Whether the kubeconfig of an admission plugin names the server; else it holds credentials for webhooks only."""
    return plugin == "ImagePolicyWebhook"


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
