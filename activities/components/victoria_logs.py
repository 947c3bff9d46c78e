"""The store of the logs of a Shoot's nodes: VictoriaLogs, behind an Envoy in the same pod.

VictoriaLogs listens on the loopback interface of the pod alone. Envoy ends TLS. A node writes with the client
certificate of its kubelet, and users read with the password of the Shoot's monitoring. No other request passes Envoy:
neither one that deletes logs, nor one for internal pages. Envoy takes the name of the node from its certificate.
"""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from activities.components import base, envoy, monitoring, priority
from activities.components.base import Manifest
from activities.components.monitoring import Served
from api import images

NAME = "victoria-logs"
PORT = 9428
SELECT = base.control_plane_labels(NAME)
UPLOAD = "/insert/journald"
"""Path of the URL for systemd-journal-upload, which appends ``/upload`` to it."""
NODE_FIELD = "node"
"""Field of each log entry with the name of the node. Names of fields of a journal have no letters in lower case."""

_UPLOAD_PATH = f"{UPLOAD}/upload"
_READ_PATHS = ({"prefix": "/select/logsql/"}, {"path_separated_prefix": "/select/vmui"}, {"path": "/select/buildinfo"})
"""Queries, and the user interface that sends them."""
_STORE, _STORE_PORT, _HEALTH_PORT = "store", 9481, 9480
_DATA = "/victoria-logs-data"
_CONFIG, _USERS, _TLS, _CLIENTS = "/etc/envoy", "/etc/envoy-users", "/etc/envoy-tls", "/etc/envoy-clients"
_CONFIG_FILE, _USERS_FILE = "envoy.json", "users"

VOLUME = "20Gi"
_RETENTION = "14d"
_LARGEST = "12GiB"
"""Size of the stored logs from which on the oldest day is deleted. VictoriaLogs keeps the last two days in any case."""
_LEFT_FREE = "1GiB"
"""Free space of the volume below which VictoriaLogs takes no more logs. Nodes then keep theirs, and send them later."""
_KIB_PER_SECOND = 512
"""Rate of all nodes of the Shoot together, in KiB/s. Envoy reads no faster, and nodes wait."""
_CONNECTION_LIFE = "3600s"
"""A connection's certificate was verified at its start. After this time it takes no new request, so that a kubelet
shows its new certificate, and the authority that signed the old one can be withdrawn."""

_OFF = {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": True, "config": {}}
"""Configuration of a route that does without a filter."""

_SCRIPT = f"""
-- Name of the node in a verified certificate of a kubelet; nil for each other client. The text of the subject has a
-- backslash before each separator that is part of a value, so no value can pass for another attribute.
local function node(tls)
  if tls == nil or not tls:peerCertificateValidated() then
    return nil
  end
  local expires = tls:expirationPeerCertificate()
  if expires == nil or expires < os.time() then
    return nil
  end
  return tls:subjectPeerCertificate():match("^CN=system:node:([a-z0-9.-]+),O=system:nodes$")
end

-- Headers that reach the store, and one by which Envoy finds the route. Others could choose another tenant, other
-- fields, or a compression that hides the size.
local kept = {{}}
for _, key in ipairs({{"content-type", "content-length", "transfer-encoding", "x-forwarded-proto"}}) do
  kept[key] = true
end

function envoy_on_request(handle)
  local name = node(handle:streamInfo():downstreamSslConnection())
  if name == nil then
    handle:respond({{[":status"] = "403"}}, "only nodes of this Shoot write, by the certificate of their kubelet\\n")
    return
  end
  local headers, dropped = handle:headers(), {{}}
  for key, _ in pairs(headers) do
    if key:sub(1, 1) ~= ":" and not kept[key] then
      table.insert(dropped, key)
    end
  end
  for _, key in ipairs(dropped) do
    headers:remove(key)
  end
  headers:replace(":path", "{_UPLOAD_PATH}")
  headers:add("VL-Extra-Fields", "{NODE_FIELD}=" .. name)
end
"""


@dataclass(frozen=True)
class VictoriaLogs:
    served: Served
    user: str
    password: bytes = field(repr=False)
    client_ca: str
    """Name of the Secret with the authorities of the Shoot's client certificates."""


def objects(store: VictoriaLogs) -> list[Manifest]:
    """Everything in the seed, in the order to apply."""
    served = store.served
    files = {_CONFIG_FILE: base.to_json(configuration())}
    config = base.versioned_config_map(NAME, served.namespace, files, labels=served.labels)
    return [*monitoring.parts(served, VOLUME, _users(store)), config, _deployment(store, config)]


def _users(store: VictoriaLogs) -> dict[str, str]:
    """Password file of Envoy, which reads SHA-1 alone. The password has 192 random bits, which no hash reveals."""
    hashed = base64.b64encode(hashlib.sha1(store.password, usedforsecurity=False).digest()).decode()
    return {_USERS_FILE: f"{store.user}:{{SHA}}{hashed}\n"}


# Envoy


def configuration() -> Manifest:
    """Envoy's configuration. It holds no secret: names of files alone."""
    tls = envoy.typed(
        "transport_sockets.tls.v3.DownstreamTlsContext",
        # Users have none. A certificate of another authority ends the connection.
        require_client_certificate=False,
        # A resumed connection would not be verified again.
        disable_stateless_session_resumption=True,
        disable_stateful_session_resumption=True,
        common_tls_context={
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
            "alpn_protocols": ["h2", "http/1.1"],
            "tls_certificates": [
                {
                    "certificate_chain": {"filename": f"{_TLS}/tls.crt"},
                    "private_key": {"filename": f"{_TLS}/tls.key"},
                }
            ],
            "validation_context": {"trusted_ca": {"filename": f"{_CLIENTS}/bundle.crt"}},
        },
    )
    chain = {"filters": [_http()], "transport_socket": {"name": "tls", "typed_config": tls}}
    health = {"match": {"path": "/health"}, "route": {"cluster": _STORE}}
    hosts = {"virtual_hosts": [{"name": "health", "domains": ["*"], "routes": [health]}]}
    healthy = {"filters": [envoy.http("health", route_config=hosts)]}
    return envoy.bootstrap(
        listeners=[
            envoy.listener("logs", "0.0.0.0", PORT, [chain], per_connection_buffer_limit_bytes=65536),
            # For the kubelet, which cannot connect to the loopback interface of a pod.
            envoy.listener("health", "0.0.0.0", _HEALTH_PORT, [healthy]),
        ],
        clusters=[envoy.static_cluster(_STORE, "127.0.0.1", _STORE_PORT)],
    )


def _http() -> Manifest:
    """A path without a route passes no filter: the first one drops the password that the second one asks for."""
    identify, password, rate = "identify", "password", "rate"
    write = {
        "match": {"path": _UPLOAD_PATH},
        # A store that is stopped, or starts, answers 503: the node tries again later, with all that was not taken.
        "route": {"cluster": _STORE, "timeout": "0s", "idle_timeout": "60s"},
        # The store offers to read compressed logs.
        "response_headers_to_remove": ["accept-encoding"],
        "request_headers_to_remove": ["x-forwarded-proto"],
        "typed_per_filter_config": {password: _OFF, rate: _rate("REQUEST")},
    }
    reads = [
        {
            "match": match,
            "route": {"cluster": _STORE, "timeout": "0s", "idle_timeout": "300s"},
            "request_headers_to_remove": ["authorization", "accountid", "projectid"],
            "typed_per_filter_config": {identify: _OFF},
        }
        for match in _READ_PATHS
    ]
    users = {"filename": f"{_USERS}/{_USERS_FILE}"}
    return envoy.http(
        "logs",
        filters=[
            {
                "name": identify,
                "typed_config": envoy.typed("filters.http.lua.v3.Lua", default_source_code={"inline_string": _SCRIPT}),
            },
            {
                "name": password,
                "typed_config": envoy.typed("filters.http.basic_auth.v3.BasicAuth", users=users),
            },
            {"name": rate, "typed_config": _rate("DISABLED")},
        ],
        route_config={"virtual_hosts": [{"name": "logs", "domains": ["*"], "routes": [write, *reads]}]},
        use_remote_address=True,
        normalize_path=True,
        merge_slashes=True,
        path_with_escaped_slashes_action="REJECT_REQUEST",
        request_headers_timeout="30s",
        common_http_protocol_options={"idle_timeout": "300s", "max_connection_duration": _CONNECTION_LIFE},
        http1_safe_max_connection_duration=True,
        # A client may fill a window at once, however slowly Envoy reads.
        http2_protocol_options={
            "max_concurrent_streams": 100,
            "initial_stream_window_size": 65536,
            "initial_connection_window_size": 262144,
        },
    )


def _rate(mode: str) -> Manifest:
    return envoy.typed(
        "filters.http.bandwidth_limit.v3.BandwidthLimit",
        stat_prefix="nodes",
        enable_mode=mode,
        limit_kbps=_KIB_PER_SECOND,
        fill_interval="0.1s",
    )


# The pod


def _deployment(store: VictoriaLogs, config: Manifest) -> Manifest:
    served = store.served
    program = base.container(
        NAME,
        images.VICTORIA_LOGS,
        [
            "/victoria-logs-prod",
            f"-httpListenAddr=127.0.0.1:{_STORE_PORT}",
            f"-storageDataPath={_DATA}",
            f"-retentionPeriod={_RETENTION}",
            f"-retention.maxDiskSpaceUsageBytes={_LARGEST}",
            f"-storage.minFreeDiskSpaceBytes={_LEFT_FREE}",
            f"-journald.streamFields={NODE_FIELD},_SYSTEMD_UNIT",
            "-http.disableCORS",
            "-loggerFormat=json",
        ],
        cpu="10m",
        memory="60Mi",
        writable={"data": _DATA},
        startupProbe=_probe(period=1, failures=120),
        readinessProbe=_probe(period=5, failures=2),
        livenessProbe=_probe(period=30, failures=4),
        # VictoriaLogs sizes its caches by the limit.
        **_limited("10m", "60Mi", "512Mi"),
    )
    proxy = envoy.container(
        "envoy",
        config=f"{_CONFIG}/{_CONFIG_FILE}",
        cpu="10m",
        memory="40Mi",
        mounts={"config": _CONFIG, "users": _USERS, "tls": _TLS, "clients": _CLIENTS},
        ports={"https": PORT},
        drain_seconds=1,
        **_limited("10m", "40Mi", "256Mi"),
    )
    return base.deployment(
        NAME,
        served.namespace,
        select=served.select,
        labels=served.labels,
        replicas=served.replicas,
        # Only one process may use the volume.
        recreate=True,
        annotations={"checksum/secret": base.checksum(_users(store))},
        pod={
            "serviceAccountName": NAME,
            "automountServiceAccountToken": False,
            "priorityClassName": priority.class_of(NAME),
            "securityContext": base.non_root_pod(),
            "containers": [program, proxy],
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": NAME}},
                base.config_map_volume("config", config["metadata"]["name"]),
                base.secret_volume("users", NAME),
                base.secret_volume("tls", served.certificate),
                base.secret_volume("clients", store.client_ca, "bundle.crt"),
                base.empty_dir("tmp"),
            ],
        },
    )


def _probe(period: int, failures: int) -> Manifest:
    return base.http_probe("/health", _HEALTH_PORT, scheme="HTTP", period=period, failures=failures)


def _limited(cpu: str, memory: str, limit: str) -> Mapping[str, Any]:
    """Requests, and a limit: what nodes and users send must not take the memory of other control planes."""
    return {"resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": limit}}}
