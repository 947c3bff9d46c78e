"""Rules of the files by which an owner chooses logins: each rule with the smallest file that breaks it."""

import base64
import copy
import json
from typing import Any

import pytest

from api.core.v1beta1.shoot import Shoot
from api.validation import kubeconfigs, logins
from tests.unit.api.shoots import SHOOT, changed
from tests.unit.kube.pki import certificates

CA, _, CLIENT = certificates("issuer.example.org")
JWT: dict[str, Any] = {
    "issuer": {"url": "https://issuer.example.org", "audiences": ["cluster"]},
    "claimMappings": {"username": {"claim": "sub", "prefix": ""}},
}
AUTHENTICATION: dict[str, Any] = {
    "apiVersion": "apiserver.config.k8s.io/v1",
    "kind": "AuthenticationConfiguration",
    "jwt": [JWT],
}
WEBHOOK: dict[str, Any] = {
    "authorizedTTL": "5m",
    "unauthorizedTTL": "30s",
    "timeout": "3s",
    "subjectAccessReviewVersion": "v1",
    "failurePolicy": "NoOpinion",
}
AUTHORIZATION: dict[str, Any] = {
    "apiVersion": "apiserver.config.k8s.io/v1",
    "kind": "AuthorizationConfiguration",
    "authorizers": [{"type": "Webhook", "name": "mine", "webhook": WEBHOOK}],
}
KUBECONFIG: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "w", "cluster": {"server": "https://webhook.example.org/authorize"}}],
    "users": [{"name": "w", "user": {"token": "SENTINEL-TOKEN"}}],
    "contexts": [{"name": "w", "context": {"cluster": "w", "user": "w"}}],
    "current-context": "w",
}


def with_(obj: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with another value; a number in the path is an index of a list."""
    made = copy.deepcopy(obj)
    at: Any = made
    *parents, last = [int(each) if each.isdigit() else each for each in path.split("/")]
    for each in parents:
        at = at.setdefault(each, {}) if isinstance(at, dict) else at[each]
    at[last] = value
    return made


def authentication_faults(content: Any, **options: Any) -> str:
    usual: dict[str, Any] = {
        "minor": 37,
        "own_issuers": ["https://own.example.org"],
        "tunnel": True,
        "anonymous": False,
    }
    options = {**usual, **options}
    text = content if isinstance(content, str) else json.dumps(content)
    config, faults = logins.parse_authentication(text, options["minor"])
    return str(faults if config is None else logins.check_authentication(config, **options))


def authorization_faults(content: Any, minor: int = 37, kubeconfigs: Any = ("mine",)) -> str:
    config, faults = logins.parse_authorization(json.dumps(content), minor)
    return str(faults if config is None else logins.check_authorization(config, minor=minor, kubeconfigs=kubeconfigs))


def kubeconfig_faults(content: Any, *, connects: bool = True) -> str:
    text = content if isinstance(content, str) else json.dumps(content)
    return str(kubeconfigs.parse_kubeconfig(text, connects=connects)[1])


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1alpha1"])
def test_usual_files_have_no_faults(version: str) -> None:
    api = f"apiserver.config.k8s.io/{version}"
    assert authentication_faults(AUTHENTICATION | {"apiVersion": api}) == "[]"
    assert authorization_faults(AUTHORIZATION | {"apiVersion": api}) == "[]"
    assert kubeconfig_faults(KUBECONFIG) == "[]"


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("apiVersion", "apiserver.config.k8s.io/v2", "apiVersion: Unsupported value"),
        ("kind", "AuthorizationConfiguration", "kind: Forbidden: Input should be 'AuthenticationConfiguration'"),
        ("jwts", [], "jwts: Forbidden: is not a field of this file"),
        ("jwt/0/issuer/URL", "", "jwt[0].issuer.URL: Forbidden: is not a field of this file"),
        ("jwt/0/issuer/audiences", "cluster", "jwt[0].issuer.audiences: Forbidden: Input should be a valid list"),
        ("jwt", [JWT] * 65, "jwt: Forbidden: has more than 64 issuers"),
        ("jwt", [JWT, JWT], 'jwt[1].issuer.url: Duplicate value: "https://issuer.example.org"'),
        ("jwt/0/issuer/url", "", "jwt[0].issuer.url: Required value"),
        ("jwt/0/issuer/url", "http://issuer.example.org", "must be an https URL"),
        ("jwt/0/issuer/url", "https://a:b@issuer.example.org", "must not contain a user name or a password"),
        ("jwt/0/issuer/url", "https://issuer.example.org?a", "must have neither query nor fragment"),
        ("jwt/0/issuer/url", "https://own.example.org", "is an issuer of the cluster's own service account tokens"),
        ("jwt/0/issuer/discoveryURL", "https://issuer.example.org/", "must be different from url"),
        ("jwt/0/issuer/discoveryURL", "https://etcd-main-client", "may name a Service of the seed"),
        ("jwt/0/issuer/audiences", [], "jwt[0].issuer.audiences: Required value"),
        ("jwt/0/issuer/audiences", [""], "jwt[0].issuer.audiences[0]: Required value"),
        ("jwt/0/issuer/audiences", ["a", "b"], "jwt[0].issuer.audienceMatchPolicy: Required value"),
        ("jwt/0/issuer/certificateAuthority", "none", "is not a bundle of certificates in PEM format"),
        ("jwt/0/claimMappings/username", {}, "claimMappings.username: Required value"),
        ("jwt/0/claimMappings/username", {"claim": "sub"}, "claimMappings.username.prefix: Required value"),
        ("jwt/0/claimMappings/username", {"claim": "a", "expression": "b"}, "either claim or expression"),
        ("jwt/0/claimMappings/username", {"expression": "claims.a", "prefix": ""}, "Forbidden: goes with claim"),
        ("jwt/0/claimMappings/groups", {"claim": "groups"}, "claimMappings.groups.prefix: Required value"),
        ("jwt/0/claimMappings/uid", {"claim": "a", "expression": "b"}, "claimMappings.uid: Forbidden"),
        ("jwt/0/claimMappings/extra", [{"key": "a", "valueExpression": "b"}], "must be a domain, a slash and a name"),
        ("jwt/0/claimMappings/extra", [{"key": "x.k8s.io/a", "valueExpression": "b"}], "is reserved for Kubernetes"),
        ("jwt/0/claimMappings/extra", [{"key": "a.b/c"}], "valueExpression: Required value"),
        ("jwt/0/claimValidationRules", [{}], "claimValidationRules[0]: Required value"),
        ("jwt/0/claimValidationRules", [{"claim": "a", "message": "b"}], "message: Forbidden: goes with expression"),
        ("jwt/0/claimValidationRules", [{"expression": "a", "requiredValue": "b"}], "goes with claim only"),
        ("jwt/0/claimValidationRules", [{"claim": "a"}, {"claim": "a"}], "claimValidationRules[1].claim: Duplicate"),
        ("jwt/0/userValidationRules", [{}], "userValidationRules[0].expression: Required value"),
        ("anonymous", {"enabled": False}, "anonymous.enabled: Forbidden: must be true"),
        ("anonymous", {"enabled": True, "conditions": [{"path": "a"}]}, "must begin with /"),
    ],
)  # fmt: skip
def test_faults_of_an_authentication_configuration(path: str, value: Any, fault: str) -> None:
    assert fault in authentication_faults(with_(AUTHENTICATION, path, value))


def test_what_an_older_kubernetes_or_the_shoot_does_not_allow() -> None:
    egress = with_(AUTHENTICATION, "jwt/0/issuer/egressSelectorType", "cluster")
    anonymous = AUTHENTICATION | {"anonymous": {"enabled": True}}

    assert authentication_faults(egress) == "[]"
    assert "has no network of its own" in authentication_faults(egress, tunnel=False)
    older = egress | {"apiVersion": "apiserver.config.k8s.io/v1beta1"}
    assert "needs Kubernetes 1.34" in authentication_faults(older, minor=33)
    assert "apiVersion: Unsupported value" in authentication_faults(egress, minor=33)
    assert authentication_faults(anonymous) == "[]"
    assert "enableAnonymousAuthentication" in authentication_faults(anonymous, anonymous=True)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "is empty"),
        ("[", "is not YAML"),
        ("[" * 10_000, "is not YAML"),
        ("a", "is not a mapping"),
        ("a: 1\na: 2\n", "has a key twice"),
        ("a: &a [1]\nb: *a\n", "aliases are not supported"),
        ("a: " + "x" * 300_000, "is longer than"),
    ],
)
def test_a_file_that_could_be_read_in_two_ways_or_would_grow_is_refused(text: str, fault: str) -> None:
    assert fault in authentication_faults(text)
    assert fault in kubeconfig_faults(text)


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("authorizers", [], "authorizers: Required value"),
        ("authorizers/0/type", "RBAC", "only Webhook can be added"),
        ("authorizers/0/type", "AlwaysAllow", "only Webhook can be added"),
        ("authorizers/0/name", "", "must be a DNS subdomain"),
        ("authorizers/0/name", "rbac", "is the name of an authorizer that the API server has"),
        ("authorizers/0/name", "node-agent-authorizer", "is the name of an authorizer that the API server has"),
        ("authorizers/0/name", "other", "the Shoot names no Secret for other"),
        ("authorizers/0/webhook", None, "authorizers[0].webhook: Required value"),
        ("authorizers/0/webhook/connectionInfo", {"type": "InClusterConfig"}, "connectionInfo: Forbidden"),
        ("authorizers/0/webhook/timeout", "31s", "must be more than 0s and at most 30s"),
        ("authorizers/0/webhook/timeout", "", "timeout: Required value"),
        ("authorizers/0/webhook/authorizedTTL", "-1s", "must be more than 0s"),
        ("authorizers/0/webhook/unauthorizedTTL", "soon", "is not a duration"),
        ("authorizers/0/webhook/subjectAccessReviewVersion", "", "subjectAccessReviewVersion: Required value"),
        ("authorizers/0/webhook/failurePolicy", "Allow", "failurePolicy: Forbidden"),
        ("authorizers/0/webhook/matchConditions", [{"expression": "true"}], "Required value: v1, for matchConditions"),
    ],
)  # fmt: skip
def test_faults_of_an_authorization_configuration(path: str, value: Any, fault: str) -> None:
    assert fault in authorization_faults(with_(AUTHORIZATION, path, value))


def test_two_authorizers_need_two_names() -> None:
    assert "Duplicate value" in authorization_faults(AUTHORIZATION | {"authorizers": AUTHORIZATION["authorizers"] * 2})


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("users/0/user", {"exec": {"command": "id"}}, "runs a program in the control plane"),
        ("users/0/user", {"auth-provider": {"name": "gcp"}}, "runs a program in the control plane"),
        ("users/0/user", {"tokenFile": "/etc/token"}, "names a file of the control plane: use token"),
        ("users/0/user", {"client-certificate": "/a"}, "use client-certificate-data"),
        ("users/0/user", {"client-certificate-data": "YQ=="}, "go together"),
        ("users/0/user", {"client-certificate-data": "?", "client-key-data": "YQ=="}, "is not base64"),
        ("users/0/user", {"as": "admin"}, "users[0].user.as: Forbidden: is not supported"),
        ("clusters/0/cluster/certificate-authority", "/a", "use certificate-authority-data"),
        ("clusters/0/cluster/certificate-authority-data", "YQ==", "is not a bundle of certificates"),
        ("clusters/0/cluster/insecure-skip-tls-verify", True, "the server must be verified"),
        ("clusters/0/cluster/proxy-url", "http://a.b", "connections through a proxy"),
        ("clusters/0/cluster/server", "http://webhook.example.org", "must be an https URL"),
        ("clusters/0/cluster/server", "https://kube-apiserver", "may name a Service of the seed"),
        ("clusters/0/cluster/server", "https://127.0.0.1:2379", "is an address of the machine itself"),
        ("clusters/0/cluster/server", "https://[::ffff:127.0.0.1]", "is an address of the machine itself"),
        ("clusters/0/cluster/server", "https://169.254.169.254", "is a link-local address"),
        ("clusters/0/cluster/server", "https://2130706433", "is a number"),
        ("clusters/0/cluster/server", "https://a.garden.svc.cluster.local", "is a name inside the seed"),
        ("clusters/0/cluster/server", "https://", "has no host"),
        ("clusters/0/cluster", {}, "its context names no cluster with a server"),
        ("current-context", "other", "current-context: Required value"),
        ("contexts/0/context/user", "other", "names a user that the kubeconfig does not have"),
        ("users", "a", "users: Forbidden: is not a list"),
    ],
)  # fmt: skip
def test_faults_of_a_webhooks_kubeconfig(path: str, value: Any, fault: str) -> None:
    faults = kubeconfig_faults(with_(KUBECONFIG, path, value))
    assert fault in faults
    assert "SENTINEL" not in faults


def test_a_kubeconfig_with_certificates_is_kept_without_fields_that_are_not_needed() -> None:
    ca = base64.b64encode(CA).decode()
    pem = base64.b64encode(CLIENT).decode()
    content = with_(KUBECONFIG, "clusters/0/cluster/certificate-authority-data", ca)
    content = with_(content, "users/0/user", {"client-certificate-data": pem, "client-key-data": pem})

    kept, faults = kubeconfigs.parse_kubeconfig(json.dumps(content | {"preferences": {}}), connects=True)
    assert not faults
    assert kept == content


def test_any_kubeconfig_of_a_project_runs_no_program_but_may_name_any_server() -> None:
    assert not kubeconfigs.check_kubeconfig(
        json.dumps(with_(KUBECONFIG, "clusters/0/cluster/server", "https://10.0.0.1"))
    )
    faults = str(
        kubeconfigs.check_kubeconfig(json.dumps(with_(KUBECONFIG, "users/0/user", {"exec": {"command": "a"}})))
    )
    assert "users[0].user.exec: Forbidden: runs a program" in faults


def fields(**server: Any) -> str:
    shoot = changed(SHOOT, "spec.kubernetes.kubeAPIServer", server)
    reference = {"apiVersion": "v1", "kind": "Secret", "name": "images"}
    shoot["spec"]["resources"] = [{"name": "images", "resourceRef": reference}]
    return str(logins.check_fields(Shoot.of(shoot)))


def test_fields_of_the_shoot() -> None:
    named = [{"authorizerName": "mine", "secretName": "a"}]
    assert fields(structuredAuthorization={"configMapName": "a", "kubeconfigs": named}) == "[]"
    assert "kubeconfigs: Required value" in fields(structuredAuthorization={"configMapName": "a"})
    assert "Duplicate" in fields(structuredAuthorization={"configMapName": "a", "kubeconfigs": named * 2})

    images = {"name": "ImagePolicyWebhook", "kubeconfigSecretName": "images"}
    assert fields(admissionPlugins=[images]) == "[]"
    assert "must also be in spec.resources" in fields(admissionPlugins=[images | {"kubeconfigSecretName": "other"}])
    assert "needs kubeconfigSecretName" in fields(admissionPlugins=[{"name": "ImagePolicyWebhook"}])
    file = {"imagePolicy": {"kubeConfigFile": "/etc/kubernetes/a"}}
    assert "names a file of the control plane" in fields(admissionPlugins=[images | {"config": file}])
    assert "reads no kubeconfig" in fields(admissionPlugins=[images | {"name": "PodSecurity"}])
