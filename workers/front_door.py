"""The front door of a garden: the Envoy at the garden's address, before kube-apiserver and the subresource servers.

This process writes Envoy's files and ends; Envoy runs beside it. Paths of subresources that kube-apiserver does not
have go to the subresource servers, all other paths to kube-apiserver. TLS ends here, so the identity in a client
certificate travels as headers (``X-Remote-User`` and others) on a connection that only a front door can open: it has
a certificate of the request-header authority. Requests without a client certificate reach kube-apiserver on
connections without a certificate, on which kube-apiserver believes no header. docs/decisions/0018-the-front-door.md.
"""

import json
import logging
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any

from activities.components import envoy
from api.model import ApiModel
from api.names import is_ip_address
from workers.lib.runtime import HealthConfig, load_config

_log = logging.getLogger(__name__)

CONFIG_FILE = "envoy.json"

_SHOOT = r"/apis/core\.gardener\.cloud/v1beta1/namespaces/{name}/shoots/{name}"
_WORKLOAD_IDENTITY = r"/apis/security\.gardener\.cloud/v1alpha1/namespaces/{name}/workloadidentities/{name}"
SUBRESOURCES = (
    *(f"{_SHOOT}/{subresource}" for subresource in ("adminkubeconfig", "viewerkubeconfig", "binding")),
    f"{_WORKLOAD_IDENTITY}/token",
)
"""Paths that the subresource servers serve; ``{name}``: name of a namespace or an object."""
_NAME = "[a-z0-9][-.a-z0-9]*"
"""Letters of names in Kubernetes. A path that is spelled otherwise goes to kube-apiserver, which knows no such path."""

USER, GROUP, EXTRA = "x-remote-user", "x-remote-group", "x-remote-extra-"
"""Headers of an identity, as kube-apiserver's flags ``--requestheader-…`` name them."""
_CREDENTIAL = f"{EXTRA}authentication.kubernetes.io%2fcredential-id"
"""Key of kube-apiserver's own record of the certificate in ``extra``; a header name has it percent-encoded."""
FORGED = r"x[-_](remote|envoy|forwarded|real)[-_].*|forwarded"
"""Headers that only a proxy may set: identities, Envoy's switches, addresses of clients. A client's are dropped."""

_OF_ENVOY = ("x-envoy-internal", "x-envoy-external-address", "x-forwarded-proto")
"""Headers that Envoy adds and no server needs."""

_CERTIFICATE, _CLIENTS, _IDENTITY, _API_SERVER_CA, _SERVERS_CA = (
    "certificate",
    "clients",
    "identity",
    "api-server-ca",
    "subresources-ca",
)
_API_SERVER, _TRUSTING, _SERVERS = "kube-apiserver", "kube-apiserver-with-identity", "subresources"
_UPGRADES = ("websocket", "SPDY/3.1")
"""Protocols of exec, attach and port-forward."""
_HEADERS_KIB = 1024
"""Maximum size of a request's headers: that of kube-apiserver."""
_HEADERS = 1000
_MAX_CONNECTIONS = 50_000
_CLIENT_IDLE = "300s"
_SERVER_IDLE = "60s"
"""Idle connections to servers end before kube-apiserver ends them, which is after 90 s: it could meet a request."""
_CONNECTION_LIFE = "3600s"
"""A connection's certificate was verified at its start. After this time it takes no new request, so that the authority
that signed the certificate can be withdrawn."""
_HEADERS_TIMEOUT = "30s"
_CIPHERS = (
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-CHACHA20-POLY1305",
)
_KEEPALIVE = (("SO_KEEPALIVE", 1, 9, 1), ("TCP_KEEPIDLE", 6, 4, 60), ("TCP_KEEPINTVL", 6, 5, 15))
"""Options of client connections, each with level, number and value: a watch of a client that is gone must end."""

_BODY = "%LOCAL_REPLY_BODY%"
_REFUSED = "the front door refuses the request: %RESPONSE_CODE_DETAILS%"
_NO_ANSWER = "the front door got no answer from a server behind it: %RESPONSE_CODE_DETAILS%"
_OWN = {
    400: ("BadRequest", _REFUSED),
    401: ("Unauthorized", _BODY),
    403: ("Forbidden", _REFUSED),
    404: ("NotFound", _REFUSED),
    413: ("RequestEntityTooLarge", _REFUSED),
    431: ("RequestHeaderFieldsTooLarge", _REFUSED),
    500: ("InternalError", _BODY),
    503: ("ServiceUnavailable", _NO_ANSWER),
    504: ("Timeout", _NO_ANSWER),
}
"""Reason and message of the front door's own answers by their status; reasons as in ``metav1.StatusReason``."""

_LOGGED = {
    "time": "%START_TIME(%Y-%m-%dT%H:%M:%S.%3fZ)%",
    "logger": "access",
    "client": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
    "user": f"%REQ({USER}):256%",
    "method": "%REQ(:METHOD):16%",
    "path": "%PATH(NQ:PATH):1024%",
    "protocol": "%PROTOCOL%",
    "code": "%RESPONSE_CODE%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "flags": "%RESPONSE_FLAGS%",
    "milliseconds": "%DURATION%",
    "bytesReceived": "%BYTES_RECEIVED%",
    "bytesSent": "%BYTES_SENT%",
    "upstream": "%UPSTREAM_CLUSTER%",
    "server": "%UPSTREAM_HOST%",
    "userAgent": "%REQ(USER-AGENT):128%",
}
"""Fields of a line of the access log: no query, because queries hold commands and tokens, and no header of credentials.
``user``: name in the client certificate. The door does not know the user of a token."""

Json = dict[str, Any]

_UNVERIFIED = "it is not of an authority of the garden, or has expired, or is not for clients"
_REFUSED_CERTIFICATE = "the front door refuses the client certificate: "

_IDENTIFY = r"""
-- Envoy stores values of a subject apart from its text, so no value can pass for another attribute. The text serves
-- to count attributes only: in it a backslash precedes each separator that is part of a value (RFC 2253).
local function counted(subject)
  local counts = {}
  for name in ("," .. subject:gsub("\\.", ""):gsub("+", ",")):gmatch(",([^=,]*)=") do
    counts[name] = (counts[name] or 0) + 1
  end
  return counts
end

-- Whether a header carries a value unchanged. HTTP strips blanks at both ends: "system:masters " would lose its own.
local function fits(value)
  return value ~= "" and not value:find("[%z\1-\31\127]") and not value:find("^ ") and not value:find(" $")
end

local function fault(tls, now)
  if not tls:peerCertificateValidated() then
    return "UNVERIFIED"
  end
  local expires = tls:expirationPeerCertificate()
  if expires == nil or expires < now then
    return "it has expired: get a new one"
  end
  local subject, counts = tls:parsedSubjectPeerCertificate(), counted(tls:subjectPeerCertificate())
  if subject == nil or counts["CN"] ~= 1 or not fits(subject:commonName()) then
    return "its subject needs exactly one common name (CN), without blanks at its ends and without control characters"
  end
  local groups = subject:organizationName()
  if (counts["O"] or 0) ~= #groups then
    return "an organization (O) of its subject is empty or no text"
  end
  for _, group in ipairs(groups) do
    if not fits(group) then
      return "an organization (O) of its subject has blanks at its ends or control characters"
    end
  end
  if counts["1.3.6.1.4.1.57683.2"] then
    return "its subject has a uid (1.3.6.1.4.1.57683.2), which the front door does not pass on: leave it out"
  end
  return nil
end

function envoy_on_request(handle)
  local tls = handle:streamInfo():downstreamSslConnection()
  if tls == nil or not tls:peerCertificatePresented() then
    return
  end
  local reason = fault(tls, os.time())
  if reason then
    handle:respond({[":status"] = "401"}, "REFUSED" .. reason)
    return
  end
  local headers, subject = handle:headers(), tls:parsedSubjectPeerCertificate()
  headers:add("USER", subject:commonName())
  for _, group in ipairs(subject:organizationName()) do
    headers:add("GROUP", group)
  end
  headers:add("CREDENTIAL", "X509SHA256=" .. tls:sha256PeerCertificateDigest())
end
"""


class AccessLog(StrEnum):
    ALL = "All"
    ERRORS = "Errors"
    """Answers of status 400 and more."""
    NONE = "None"


class FrontDoorServer(ApiModel):
    address: str
    port: int = 6443
    certificate_file: Path
    """Certificate of the garden's address. All files are read again when they change."""
    private_key_file: Path
    client_ca_file: Path
    """Authorities of the garden's users; a client certificate of any other authority ends the connection."""


class Servers(ApiModel):
    """Servers behind the front door, all with the same certificate authority."""

    endpoints: tuple[str, ...]
    """``HOST:PORT``; an address or a DNS name."""
    ca_file: Path
    server_name: str
    """DNS name or IP address that the server's certificate must have."""


class Identity(ApiModel):
    """Client certificate of the request-header authority."""

    certificate_file: Path
    private_key_file: Path


class FrontDoorConfig(ApiModel):
    server: FrontDoorServer
    api_server: Servers
    subresources: Servers
    request_header_identity: Identity
    directory: Path = Path("/var/lib/envoy")
    """Directory for Envoy's files."""
    admin_socket: Path = Path("/tmp/envoy-admin.sock")
    """At most 107 characters, and another one for each Envoy of a machine."""
    access_log: AccessLog = AccessLog.ALL
    """Requests of which Envoy writes a line to its standard output, as JSON, after the answer."""
    health: HealthConfig
    """Address of Envoy's /ready and /stats/prometheus."""


async def run(config_path: str) -> None:
    """Write Envoy's files before Envoy starts. A second run writes the same files."""
    config = load_config(FrontDoorConfig, config_path)
    for name, content in files(config).items():
        (config.directory / name).write_text(content)
    _log.info("wrote Envoy's configuration to %s", config.directory / CONFIG_FILE)


def files(config: FrontDoorConfig) -> dict[str, str]:
    """Envoy's files by name: the configuration, and one for each certificate or authority, which Envoy reads again."""
    server, identity = config.server, config.request_header_identity
    secrets = {
        _CERTIFICATE: _certificate(server.certificate_file, server.private_key_file),
        _CLIENTS: _authority(server.client_ca_file),
        _IDENTITY: _certificate(identity.certificate_file, identity.private_key_file),
        _API_SERVER_CA: _authority(config.api_server.ca_file, config.api_server.server_name),
        _SERVERS_CA: _authority(config.subresources.ca_file, config.subresources.server_name),
    }
    found: dict[str, Json] = {
        _file(name): {"resources": [_tls("Secret", name=name, **secret)]} for name, secret in secrets.items()
    }
    found[CONFIG_FILE] = envoy.bootstrap(
        node={"id": "front-door", "cluster": "front-door"},  # needed by clients of secrets, in files, too
        listeners=[_listener(config)],
        clusters=[
            _cluster(config, _API_SERVER, config.api_server, _API_SERVER_CA, identified=False),
            _cluster(config, _TRUSTING, config.api_server, _API_SERVER_CA, identified=True),
            _cluster(config, _SERVERS, config.subresources, _SERVERS_CA, identified=True),
        ],
        metrics_address=config.health.address,
        metrics_port=config.health.port,
        admin_socket=str(config.admin_socket),
    )
    return {name: json.dumps(content, indent=1) for name, content in found.items()}


def subresource_paths() -> Iterable[str]:
    """Regular expressions for the whole path, without the query."""
    return (path.format(name=_NAME) for path in SUBRESOURCES)


def _listener(config: FrontDoorConfig) -> Json:
    tls = _tls(
        "DownstreamTlsContext",
        require_client_certificate=False,
        # A resumed connection would not be verified again.
        disable_stateless_session_resumption=True,
        disable_stateful_session_resumption=True,
        common_tls_context={
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2", "cipher_suites": list(_CIPHERS)},
            "alpn_protocols": ["h2", "http/1.1"],
            "tls_certificate_sds_secret_configs": [_secret(config, _CERTIFICATE)],
            "combined_validation_context": {
                # kube-apiserver, too, lets a client connect, and then answers 401. Clients that get 401 ask for a new
                # certificate; they take the end of a connection for a network that fails.
                "default_validation_context": {"trust_chain_verification": "ACCEPT_UNTRUSTED"},
                "validation_context_sds_secret_config": _secret(config, _CLIENTS),
            },
        },
    )
    chain = {"filters": [_http(config.access_log)], "transport_socket": {"name": "tls", "typed_config": tls}}
    return envoy.listener(
        "garden",
        config.server.address,
        config.server.port,
        [chain],
        socket_options=[
            {"description": name, "level": level, "name": number, "int_value": value, "state": "STATE_LISTENING"}
            for name, level, number, value in _KEEPALIVE
        ],
    )


def _http(access_log: AccessLog) -> Json:
    script = _IDENTIFY
    texts = {"USER": USER, "GROUP": GROUP, "CREDENTIAL": _CREDENTIAL}
    for placeholder, text in (texts | {"UNVERIFIED": _UNVERIFIED, "REFUSED": _REFUSED_CERTIFICATE}).items():
        script = script.replace(f'"{placeholder}"', f'"{text}"')
    identify = envoy.typed("filters.http.lua.v3.Lua", default_source_code={"inline_string": script})
    drop = envoy.typed(
        "http.early_header_mutation.header_mutation.v3.HeaderMutation",
        mutations=[{"remove_on_match": {"key_matcher": {"safe_regex": {"regex": FORGED}}}}],
    )
    return envoy.http(
        "garden",
        filters=[{"name": "identify", "typed_config": identify}],
        router={"suppress_envoy_headers": True},
        early_header_mutation_extensions=[{"name": "drop-forged-headers", "typed_config": drop}],
        route_config={
            "virtual_hosts": [
                {"name": "garden", "domains": ["*"], "routes": list(_routes()), "retry_policy": _RETRIES},
            ],
            "request_headers_to_remove": list(_OF_ENVOY),
        },
        # kube-apiserver gets each path as the client has written it: paths of Services and pods may hold anything.
        normalize_path=False,
        merge_slashes=False,
        path_with_escaped_slashes_action="KEEP_UNCHANGED",
        upgrade_configs=[{"upgrade_type": name} for name in _UPGRADES],
        # The client's address is the first one in the audit log. Its own X-Forwarded-For has been dropped before.
        use_remote_address=True,
        internal_address_config={},
        generate_request_id=False,
        server_header_transformation="PASS_THROUGH",
        max_request_headers_kb=_HEADERS_KIB,
        request_headers_timeout=_HEADERS_TIMEOUT,
        common_http_protocol_options={
            "idle_timeout": _CLIENT_IDLE,
            "max_connection_duration": _CONNECTION_LIFE,
            "max_headers_count": _HEADERS,
        },
        http1_safe_max_connection_duration=True,
        http2_protocol_options={
            "max_concurrent_streams": 1000,
            "initial_stream_window_size": 262_144,
            "initial_connection_window_size": 1_048_576,
        },
        local_reply_config=_own_answers(),
        access_log=_access_log(access_log),
    )


def _access_log(which: AccessLog) -> list[Json]:
    if which is AccessLog.NONE:
        return []
    log = envoy.typed("access_loggers.stream.v3.StdoutAccessLog", log_format={"json_format": _LOGGED})
    failed = {"status_code_filter": {"comparison": {"op": "GE", "value": _runtime("errors_from", 400)}}}
    return [{"name": "access", "typed_config": log, **({"filter": failed} if which is AccessLog.ERRORS else {})}]


def _runtime(name: str, value: int) -> Json:
    """A number for Envoy, which must have a key by which a runtime configuration could change it."""
    return {"default_value": value, "runtime_key": f"front_door.{name}"}


_RETRIES: Json = {
    # Conditions under which no part of a request has been read, so that each method may be sent again.
    "retry_on": "connect-failure,refused-stream,reset-before-request",
    "num_retries": 3,
    "retry_host_predicate": [
        {
            "name": "other-server",
            "typed_config": envoy.typed("retry.host.previous_hosts.v3.PreviousHostsPredicate"),
        }
    ],
    "host_selection_retry_max_attempts": 3,
}


def _routes() -> Iterable[Json]:
    """Routes in their order: the first that matches counts."""
    identified = {"name": USER, "present_match": True}
    yield {
        "match": {"prefix": "/", "tls_context": {"presented": True, "validated": False}},
        "direct_response": {"status": 401, "body": {"inline_string": _REFUSED_CERTIFICATE + _UNVERIFIED}},
    }
    without_upgrades = [{"upgrade_type": each, "enabled": False} for each in _UPGRADES]
    for path in subresource_paths():
        forward = _forward(_SERVERS, upgrade_configs=without_upgrades)
        yield {"match": {"safe_regex": {"regex": path}}, "route": forward}
    # The filter has made an identity or an answer of each certificate. If the filter has failed, no request passes.
    yield {
        "match": {
            "prefix": "/",
            "tls_context": {"presented": True},
            "headers": [{**identified, "invert_match": True}],
        },
        "direct_response": {
            "status": 500,
            "body": {"inline_string": "the front door failed to read the client certificate"},
        },
    }
    yield {"match": {"prefix": "/", "headers": [identified]}, "route": _forward(_TRUSTING)}
    yield {"match": {"prefix": "/"}, "route": _forward(_API_SERVER)}


def _forward(cluster: str, **rest: Any) -> Json:
    """Forward without a time limit: watches, logs and terminals last as long as both sides want."""
    return {"cluster": cluster, "timeout": "0s", "idle_timeout": "0s", **rest}


def _cluster(config: FrontDoorConfig, name: str, servers: Servers, authority: str, *, identified: bool) -> Json:
    """Servers that get each request on a connection that no other request uses at that time.

    Clients that read slowly would stall each other in HTTP/2, and kube-apiserver accepts upgrades in HTTP/1.1 only.
    """
    tls = _tls(
        "UpstreamTlsContext",
        **({} if is_ip_address(servers.server_name) else {"sni": servers.server_name}),
        common_tls_context={
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2", "tls_maximum_protocol_version": "TLSv1_3"},
            "validation_context_sds_secret_config": _secret(config, authority),
            **({"tls_certificate_sds_secret_configs": [_secret(config, _IDENTITY)]} if identified else {}),
        },
    )
    options = envoy.typed(
        "upstreams.http.v3.HttpProtocolOptions",
        common_http_protocol_options={"idle_timeout": _SERVER_IDLE},
        explicit_http_config={"http_protocol_options": {}},
    )
    limits = {"max_connections": _MAX_CONNECTIONS, "max_pending_requests": _MAX_CONNECTIONS}
    endpoints = [endpoint.rsplit(":", 1) for endpoint in servers.endpoints]
    return {
        "name": name,
        "type": "STRICT_DNS",
        "dns_lookup_family": "V4_PREFERRED",
        "connect_timeout": "5s",
        "upstream_connection_options": {"tcp_keepalive": {"keepalive_time": 60, "keepalive_interval": 15}},
        "circuit_breakers": {"thresholds": [{**limits, "max_requests": _MAX_CONNECTIONS, "max_retries": 1000}]},
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options},
        "transport_socket": {"name": "tls", "typed_config": tls},
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [
                {
                    "lb_endpoints": [
                        {"endpoint": {"address": envoy.socket(host.strip("[]"), int(port))}} for host, port in endpoints
                    ]
                }
            ],
        },
    }


def _own_answers() -> Json:
    """Answers of the front door itself, as a ``Status`` of Kubernetes."""

    def status(reason: str, message: str) -> Json:
        return {
            "json_format": {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Failure",
                "message": message,
                "reason": reason,
                "code": "%RESPONSE_CODE%",
            }
        }

    def exactly(code: int) -> Json:
        return {"status_code_filter": {"comparison": {"op": "EQ", "value": _runtime(f"status_{code}", code)}}}

    return {
        "mappers": [
            {"filter": exactly(code), "body_format_override": status(reason, message)}
            for code, (reason, message) in _OWN.items()
        ],
        "body_format": status("Unknown", _REFUSED),
    }


def _certificate(certificate: Path, key: Path) -> Json:
    return {
        "tls_certificate": {
            "certificate_chain": {"filename": str(certificate)},
            "private_key": {"filename": str(key)},
            "watched_directory": {"path": str(certificate.parent)},
        }
    }


def _authority(file: Path, server_name: str = "") -> Json:
    """Authorities that certificates are verified with; with ``server_name`` the certificate must be for that name."""
    names = {}
    if server_name:
        kind = "IP_ADDRESS" if is_ip_address(server_name) else "DNS"
        names = {"match_typed_subject_alt_names": [{"san_type": kind, "matcher": {"exact": server_name}}]}
    return {
        "validation_context": {
            "trusted_ca": {"filename": str(file)},
            "watched_directory": {"path": str(file.parent)},
            **names,
        }
    }


def _secret(config: FrontDoorConfig, name: str) -> Json:
    return {"name": name, "sds_config": {"path_config_source": {"path": str(config.directory / _file(name))}}}


def _file(secret: str) -> str:
    return f"{secret}.json"


def _tls(message: str, **fields: Any) -> Json:
    return envoy.typed(f"transport_sockets.tls.v3.{message}", **fields)
