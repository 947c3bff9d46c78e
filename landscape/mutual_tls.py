"""Envoy that requires a certificate of each client, and forwards its gRPC calls to a server without TLS.

Envoy watches the files of its certificate and of the clients' CA, so renewed files need no restart.
"""

import json
import sys
from pathlib import Path
from typing import Any

from landscape.files import write_if_changed
from landscape.pki import KeyPair

_TYPES = "type.googleapis.com/envoy"
_TLS = f"{_TYPES}.extensions.transport_sockets.tls.v3"
_MANY = 1_000_000_000
_ASKED_BY_WORKERS = "/temporal.api.workflowservice.v1.WorkflowService/Poll"
_SOON = ("--file-flush-interval-msec", "1000")
"""Envoy flushes its log to the file after one second."""
Config = dict[str, Any]


def write(
    directory: Path, listen: str, server: str, certificate: KeyPair, client_ca: Path, *, metrics: tuple[str, str] | None
) -> tuple[str, ...]:
    """Write the configuration; returns the command that runs Envoy with it.

    ``listen`` and ``server``: HOST:PORT. ``metrics``: where ``/metrics`` is served without TLS, and of which server.
    """
    directory.mkdir(parents=True, exist_ok=True)
    secrets = {
        "server": {
            "tls_certificate": {
                "certificate_chain": {"filename": str(certificate.certificate)},
                "private_key": {"filename": str(certificate.key)},
                "watched_directory": {"path": str(certificate.certificate.parent)},
            }
        },
        "clients": {
            "validation_context": {
                "trusted_ca": {"filename": str(client_ca)},
                "watched_directory": {"path": str(client_ca.parent)},
            }
        },
    }
    for name, secret in secrets.items():
        resource = {"@type": f"{_TLS}.Secret", "name": name, **secret}
        write_if_changed(directory / f"{name}.json", json.dumps({"resources": [resource]}, indent=2))
    listeners, clusters = [_listener(directory, listen)], [_cluster("server", server, grpc=True)]
    if metrics is not None:
        listeners.append(_metrics_listener(metrics[0]))
        clusters.append(_cluster("metrics", metrics[1], grpc=False))
    file = directory / "envoy.json"
    node = {"id": directory.name, "cluster": "landscape"}  # needed by clients of secrets, in files, too
    config = {"node": node, "static_resources": {"listeners": listeners, "clusters": clusters}}
    write_if_changed(file, json.dumps(config, indent=2))
    envoy = str(Path(sys.executable).parent / "envoy")
    return (envoy, "-c", str(file), "--log-level", "warn", "--concurrency", "1", "--disable-hot-restart", *_SOON)


def _listener(directory: Path, address: str) -> Config:
    def secret(name: str) -> Config:
        return {"name": name, "sds_config": {"path_config_source": {"path": str(directory / f"{name}.json")}}}

    tls = {
        "@type": f"{_TLS}.DownstreamTlsContext",
        "require_client_certificate": True,
        "common_tls_context": {
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
            "alpn_protocols": ["h2"],
            "tls_certificate_sds_secret_configs": [secret("server")],
            "validation_context_sds_secret_config": secret("clients"),
        },
    }
    manager = _http("server", {"prefix": "/"}) | {
        "codec_type": "HTTP2",
        "access_log": [_access_log(directory / "polls.log")],
        "access_log_options": {"flush_access_log_on_new_request": True},
    }
    return {
        "name": "grpc",
        "address": _address(address),
        "filter_chains": [
            {"filters": [_filter(manager)], "transport_socket": {"name": "tls", "typed_config": tls}},
        ],
    }


def _metrics_listener(address: str) -> Config:
    return {
        "name": "metrics",
        "address": _address(address),
        "filter_chains": [{"filters": [_filter(_http("metrics", {"path": "/metrics"}))]}],
    }


def _http(cluster: str, match: Config) -> Config:
    """Routes without timeouts: Temporal's long polls have their own."""
    route = {"match": match, "route": {"cluster": cluster, "timeout": "0s"}}
    return {
        "@type": f"{_TYPES}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": cluster,
        "stream_idle_timeout": "0s",
        "common_http_protocol_options": {"idle_timeout": "0s"},
        "route_config": {"virtual_hosts": [{"name": cluster, "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {
                "name": "router",
                "typed_config": {"@type": f"{_TYPES}.extensions.filters.http.router.v3.Router"},
            }
        ],
    }


def _filter(manager: Config) -> Config:
    return {"name": "http", "typed_config": manager}


def _access_log(file: Path) -> Config:
    """Log of the start and the end of polls only: it shows which certificate polls the tasks of which worker."""
    return {
        "name": "file",
        "filter": {"header_filter": {"header": {"name": ":path", "string_match": {"prefix": _ASKED_BY_WORKERS}}}},
        "typed_config": {
            "@type": f"{_TYPES}.extensions.access_loggers.file.v3.FileAccessLog",
            "path": str(file),
            "log_format": {
                "json_format": {
                    "time": "%START_TIME%",
                    "event": "%ACCESS_LOG_TYPE%",
                    "call": "%REQ(:PATH)%",
                    "subject": "%DOWNSTREAM_PEER_SUBJECT%",
                    "serial": "%DOWNSTREAM_PEER_SERIAL%",
                    "from": "%DOWNSTREAM_REMOTE_ADDRESS%",
                    "status": "%GRPC_STATUS%",
                }
            },
        },
    }


def _cluster(name: str, address: str, *, grpc: bool) -> Config:
    protocol: Config = {"http2_protocol_options": {}} if grpc else {"http_protocol_options": {}}
    options = {
        "@type": f"{_TYPES}.extensions.upstreams.http.v3.HttpProtocolOptions",
        "common_http_protocol_options": {"idle_timeout": "0s"},
        "explicit_http_config": protocol,
    }
    return {
        "name": name,
        "connect_timeout": "5s",
        "circuit_breakers": {
            "thresholds": [{"max_connections": _MANY, "max_pending_requests": _MANY, "max_requests": _MANY}]
        },
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options},
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(address)}}]}],
        },
    }


def _address(address: str) -> Config:
    host, port = address.rsplit(":", 1)
    return {"socket_address": {"address": host, "port_value": int(port)}}
