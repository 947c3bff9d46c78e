"""Workloads of users in a cluster, for tests: pods of our own image, which has a Python, and their Services."""

import base64
import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from api import images

PROBE = "probe"
"""The namespace in the cluster that the tests work in."""
GROUP = "served.example.org"
"""Group of an API that pods serve."""
DENIAL = "this name is not for you"
LINGER_SECONDS = 5
"""How long a terminating pod still serves: its clients learn of its end a little later."""

Manifest = dict[str, Any]
_SERVES: Manifest = {"tcpSocket": {"port": 8080}}
ALIVE: Manifest = {"exec": {"command": ["true"]}}
"""Probe of pods that serve no requests: they are ready as soon as they run."""


def namespace() -> Manifest:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PROBE}}


def python(
    name: str,
    replicas: int,
    code: str,
    *,
    secret: str = "",
    version: str = "",
    linger: int = 0,
    pool: str = "",
    ready: Manifest = _SERVES,
) -> Manifest:
    """A Deployment, one pod a machine, of one pool if that matters.

    Another version makes new pods; one that goes serves for ``linger`` seconds.
    """
    labels = {"app": name}
    volumes = [{"name": "secret", "secret": {"secretName": secret}}] if secret else []
    mounts = [{"name": "secret", "mountPath": "/secret", "readOnly": True}] if secret else []
    apart = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": PROBE},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": {"version": version}},
                "spec": {
                    "nodeSelector": {"worker.gardener.cloud/pool": pool} if pool else {},
                    "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
                    "terminationGracePeriodSeconds": linger + 1,
                    "containers": [
                        {
                            "name": name,
                            "image": images.GARDENER,
                            "imagePullPolicy": "IfNotPresent",
                            "command": ["python3", "-u", "-c", code],
                            "readinessProbe": {**ready, "periodSeconds": 1},
                            "volumeMounts": mounts,
                            **({"lifecycle": {"preStop": {"sleep": {"seconds": linger}}}} if linger else {}),
                        }
                    ],
                    "volumes": volumes,
                },
            },
        },
    }


def service(name: str, port: int) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": PROBE},
        "spec": {"selector": {"app": name}, "ports": [{"port": port, "targetPort": 8080}]},
    }


def processes_of(uid: str) -> Iterator[int]:
    """Processes of a pod on any node of a landscape: all nodes share this machine."""
    for each in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            if uid in each.read_text():
                yield int(each.parent.name)
        except OSError:
            continue  # it has ended


def budget(app: str, **allowed: int) -> Manifest:
    """``allowed``: how many pods of an app there must be, or may be missing."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": app, "namespace": PROBE},
        "spec": {"selector": {"matchLabels": {"app": app}}, **allowed},
    }


WEB = """
import http.server, socket
class Web(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(socket.gethostname().encode())
http.server.ThreadingHTTPServer(("", 8080), Web).serve_forever()
"""
"""Says on which pod one has come out."""


def webhook(replicas: int = 1, *, api: bool = False) -> list[Manifest]:
    """An admission webhook that denies ConfigMaps of one name. With ``api`` the same pods serve ``GROUP``, too.

    Of more than one pod there is always one: they go one after the other, each when another one is there.
    """
    ca, certificate, key = _serving_certificate(f"webhook.{PROBE}.svc")
    data = {"tls.crt": certificate, "tls.key": key}
    version = hashlib.sha256(certificate).hexdigest()
    bundle = base64.b64encode(ca).decode()
    reference = {"name": "webhook", "namespace": PROBE}
    linger = LINGER_SECONDS if replicas > 1 else 0
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": reference,
            "stringData": {name: value.decode() for name, value in data.items()},
        },
        python("webhook", replicas, _SERVER, secret="webhook", version=version, linger=linger),
        service("webhook", 443),
        budget("webhook", maxUnavailable=1),
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "probe"},
            "webhooks": [
                {
                    "name": "probe.example.org",
                    "admissionReviewVersions": ["v1"],
                    "sideEffects": "None",
                    "failurePolicy": "Fail",
                    "timeoutSeconds": 10,
                    "clientConfig": {"service": {**reference, "path": "/"}, "caBundle": bundle},
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": PROBE}},
                    "rules": [
                        {
                            "apiGroups": [""],
                            "apiVersions": ["v1"],
                            "resources": ["configmaps"],
                            "operations": ["CREATE"],
                        }
                    ],
                }
            ],
        },
        *([_api_service(reference, bundle)] if api else []),
    ]


def _api_service(reference: Manifest, bundle: str) -> Manifest:
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"v1.{GROUP}"},
        "spec": {
            "group": GROUP,
            "version": "v1",
            "groupPriorityMinimum": 1000,
            "versionPriority": 15,
            "caBundle": bundle,
            "service": reference,
        },
    }


def _serving_certificate(host: str) -> tuple[bytes, bytes, bytes]:
    """A certificate that signs itself, twice: as the CA and as the server's; and its key. PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate, certificate, encoded


_SERVER = f"""
import http.server, json, ssl, socket
GET = {{
    "/apis/{GROUP}/v1": {{
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "{GROUP}/v1", "resources": [],
    }},
    "/apis/{GROUP}/v1/greeting": {{"kind": "Greeting", "apiVersion": "{GROUP}/v1", "from": socket.gethostname()}},
}}
class Served(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        found = GET.get(self.path.partition("?")[0])
        self._answer(200 if found else 404, found or {{}})
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
        allowed = request["name"] != "forbidden"
        response = {{"uid": request["uid"], "allowed": allowed, "status": {{"message": "{DENIAL}"}}}}
        self._answer(200, {{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}})
    def _answer(self, status, answer):
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
context.load_cert_chain("/secret/tls.crt", "/secret/tls.key")
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 64
    def finish_request(self, request, address):
        # In the request's own thread: a silent connection holds up no others.
        request.settimeout(20)
        with context.wrap_socket(request, server_side=True) as tls:
            super().finish_request(tls, address)
Server(("", 8080), Served).serve_forever()
"""
