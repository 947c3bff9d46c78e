"""First step of a machine's first boot: requests the node agent's client certificate; then the kubelet starts.

The resource manager grants the certificate only while the machine has no Node, so the request comes before the
kubelet's own. This is a program of its own, which uses the standard library except for the key: the kubelet waits for
it, and the node agent's imports take longer.
"""

import base64
import hashlib
import http
import http.client
import json
import os
import ssl
import sys
import time
import urllib.parse
import warnings
from pathlib import Path
from typing import Any

CSR_NAME_PREFIX = "node-agent-csr-"
USER_PREFIX = "gardener.cloud:node-agent:machine:"
GROUP = "gardener.cloud:node-agents"

_FIRST_DELAY, _LONGEST_DELAY = 0.25, 5.0


class Credentials:
    """Files with the agent's key, certificate and pending request."""

    def __init__(self, state_directory: Path) -> None:
        self.directory = state_directory / "credentials"
        self.key = self.directory / "client.key"
        self.certificate = self.directory / "client.crt"
        self.pending = self.directory / "pending-request"
        """File with the name of the CertificateSigningRequest for ``pending_key``."""
        self.pending_key = self.directory / "pending.key"
        self.bootstrap_token = self.directory / "bootstrap-token"


def signing_request(
    machine: str,
    *,
    user_prefix: str = USER_PREFIX,
    group: str = GROUP,
    signer: str = "kubernetes.io/kube-apiserver-client",
    name_prefix: str = CSR_NAME_PREFIX,
) -> tuple[bytes, dict[str, Any]]:
    """A new key in PEM format, and the CertificateSigningRequest for it, whose name is a hash of its content."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    with warnings.catch_warnings():
        # X.520 allows 64 characters, which prefix and machine name may exceed. Kubernetes accepts that.
        warnings.simplefilter("ignore")
        name = x509.NameAttribute(NameOID.COMMON_NAME, user_prefix + machine, _validate=False)
    subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, group), name])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    encoded = base64.b64encode(request.public_bytes(serialization.Encoding.PEM)).decode()
    request_name = name_prefix + hashlib.sha256(encoded.encode()).hexdigest()[:16]
    return pem, {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": request_name},
        "spec": {
            "signerName": signer,
            "request": encoded,
            "usages": ["digital signature", "client auth"],
        },
    }


def write_private(path: Path, content: bytes) -> None:
    """Replace the file as a whole, readable by root alone. After a loss of power it is the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def _create(server: str, ca_file: str, token: str, body: dict[str, Any]) -> None:
    """Create the request, unless an earlier attempt has created it. Raises OSError or HTTPException."""
    address = urllib.parse.urlsplit(server)
    context = ssl.create_default_context(cafile=ca_file)
    connection = http.client.HTTPSConnection(address.hostname or "", address.port or 443, timeout=10, context=context)
    try:
        connection.request(
            "POST",
            "/apis/certificates.k8s.io/v1/certificatesigningrequests",
            json.dumps(body),
            {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        answer = connection.getresponse()
        answer.read()
        # Conflict: the name is a hash of the content, so this is our own request, and its answer was lost.
        if answer.status not in (http.HTTPStatus.CREATED, http.HTTPStatus.CONFLICT):
            raise http.client.HTTPException(f"API server answered {answer.status} {answer.reason}")
    finally:
        connection.close()


def main(config_path: str) -> None:
    """Create the request and store its name for the agent. Returns at once if there is nothing left to request."""
    config = json.loads(Path(config_path).read_text())
    state = Path(config.get("stateDirectory", "/var/lib/gardener-node-agent"))
    credentials = Credentials(state)
    if credentials.certificate.exists() or credentials.pending.exists() or not credentials.bootstrap_token.exists():
        return
    key, body = signing_request((state / "machine-name").read_text().strip())
    token = credentials.bootstrap_token.read_text().strip()
    write_private(credentials.pending_key, key)
    delay = _FIRST_DELAY
    while True:
        try:
            _create(config["server"], config["caFile"], token, body)
            break
        except (OSError, http.client.HTTPException) as error:
            print(f"asking for the node agent's certificate: {error}; again in {delay:.1f} s", file=sys.stderr)
        # The API server, or our rights in it, may not exist yet, and no event tells a machine when they do.
        time.sleep(delay)
        delay = min(delay * 2, _LONGEST_DELAY)
    write_private(credentials.pending, body["metadata"]["name"].encode())


if __name__ == "__main__":
    main(sys.argv[1])
