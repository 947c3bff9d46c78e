"""Certificates and stored objects of components, read from the wire and from etcd, not from our own records."""

import base64
import hashlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

from api.images import ETCD_VERSION
from tests.landscape.conftest import run
from tests.landscape.shoots import Shoot, decoded

Wire = dict[str, str]
"""By component: the generation of the authority that its certificate is by; those that it trusts clients of."""


def authorities(shoot: Shoot) -> frozenset[str]:
    """Secrets of certificate authorities: each is named in all certificates that it signs."""
    labelled = (
        (each["metadata"]["name"], each["metadata"].get("labels", {}).get("name", "")) for each in shoot.secrets()
    )
    return frozenset(name for name, kind in labelled if kind == "ca" or kind.startswith("ca-"))


def read(shoot: Shoot, old: frozenset[str]) -> Wire:
    """Certificate that each component presents to a client; ``old`` are the authorities from before."""

    def pod(labels: str) -> str:
        listed = json.loads(shoot.control_plane("get", "pods", "-o", "json", "-l", labels))["items"]
        return next(str(each["status"]["podIP"]) for each in listed if "deletionTimestamp" not in each["metadata"])

    def node() -> str:
        listed = json.loads(shoot.kubectl("get", "nodes", "-o", "json"))["items"]
        addresses = listed[0]["status"]["addresses"]
        return next(str(each["address"]) for each in addresses if each["type"] == "InternalIP")

    seed, cloud = (f"gardener-{shoot.landscape.name}-{name}" for name in (shoot.seed, "cloud"))
    places = {
        "kube-apiserver": (seed, pod("app=kubernetes,role=apiserver"), 443),
        "etcd-main": (seed, pod("app.kubernetes.io/part-of=etcd-main"), 2379),
        "etcd-events": (seed, pod("app.kubernetes.io/part-of=etcd-events"), 2379),
        "vpn-seed-server": (seed, pod("app=vpn-seed-server"), 9443),
        "kube-controller-manager": (seed, pod("app=kubernetes,role=controller-manager"), 10257),
        "kube-scheduler": (seed, pod("app=kubernetes,role=scheduler"), 10259),
        "kubelet": (cloud, node(), 10250),
    }
    return {name: _handshake(*place, old) for name, place in places.items()}


def peers(shoot: Shoot, old: frozenset[str]) -> Wire:
    """The same for the certificates that the members of etcd-main present to each other."""
    listed = shoot.control_plane("get", "pods", "-o", "json", "-l", "app.kubernetes.io/part-of=etcd-main")
    seed = f"gardener-{shoot.landscape.name}-{shoot.seed}"
    return {
        each["metadata"]["name"]: _handshake(seed, each["status"]["podIP"], 2380, old)
        for each in json.loads(listed)["items"]
    }


def _handshake(netns: str, address: str, port: int, old: frozenset[str]) -> str:
    command = ["nsenter", f"--net=/run/netns/{netns}", "openssl", "s_client", "-connect", f"{address}:{port}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    issuer = re.search(r"^issuer=.*?CN ?= ?(\S+)", done.stdout, re.MULTILINE)
    assert issuer, done.stdout + done.stderr
    _, _, rest = done.stdout.partition("Acceptable client certificate CA names\n")
    asked = re.findall(r"^CN ?= ?(\S+)$", rest.partition("\nRequested Signature")[0], re.MULTILINE)
    shown = "old" if issuer[1] in old else "new"
    trusted = sorted({"old" if name in old else "new" for name in asked}, reverse=True)
    return f"{shown}; {' and '.join(trusted) or 'none'}"


def otherwise_encrypted(shoot: Shoot, directory: Path, provider: str, prefix: str) -> list[bytes]:
    """How values begin that etcd does not have under the only key that there is, by this provider."""
    kind = "kube-apiserver-etcd-encryption-key"
    (key,) = (each for each in shoot.secrets() if each["metadata"].get("labels", {}).get("name") == kind)
    wanted = f"k8s:enc:{provider}:v1:{decoded(key)['key'].decode()}:".encode()
    found = [base64.b64decode(each["value"]) for each in _range(shoot, directory, "--prefix", prefix).get("kvs") or ()]
    assert found
    return [value[: len(wanted)] for value in found if not value.startswith(wanted)]


def content(shoot: Shoot, directory: Path, revision: int = 0) -> tuple[int, str]:
    """The revision, by default the newest one, and a hash of all that clients see of etcd at it."""
    found = _range(shoot, directory, "--from-key", "", f"--rev={revision}")
    seen = [[each[name] for name in ("key", "value", "create_revision", "mod_revision", "version")]
            for each in found["kvs"]]  # fmt: skip
    return revision or int(found["header"]["revision"]), hashlib.sha256(json.dumps(seen).encode()).hexdigest()


def _range(shoot: Shoot, directory: Path, *arguments: str) -> dict[str, Any]:
    etcd = json.loads(shoot.control_plane("get", "etcd", "etcd-main", "-o", "json"))
    secrets = {each["metadata"]["name"]: decoded(each) for each in shoot.secrets()}
    tls = etcd["spec"]["etcd"]["clientUrlTls"]
    client = secrets[tls["clientTLSSecretRef"]["name"]]
    files = {
        "cacert": secrets[tls["tlsCASecretRef"]["name"]]["bundle.crt"],
        "cert": client["tls.crt"],
        "key": client["tls.key"],
    }
    for name, content in files.items():
        (directory / name).touch(mode=0o600)
        (directory / name).write_bytes(content)
    address = json.loads(shoot.control_plane("get", "pod", "etcd-main-0", "-o", "json"))["status"]["podIP"]
    etcdctl = Path(f"~/.cache/gardener/landscape/bin/etcd-{ETCD_VERSION}/etcdctl").expanduser()
    access = [f"--{name}={directory}/{name}" for name in files]
    # The certificate names the member, not its address.
    options = [f"--endpoints=https://{address}:2379", "--insecure-skip-tls-verify=true", *access, "-w", "json"]
    netns = f"--net=/run/netns/gardener-{shoot.landscape.name}-{shoot.seed}"
    found: dict[str, Any] = json.loads(run("nsenter", netns, etcdctl, *options, "get", *arguments))
    return found
