"""All credentials of a cluster are rotated under clients: none is refused, none is forgotten, nothing old is left."""

import json
import re
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.landscape import wire
from tests.landscape.clients import Access, Clients, TunnelClients
from tests.landscape.conftest import BIN, Landscape
from tests.landscape.shoots import CREATION, Shoot, decoded, refused

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(1200, func_only=True)]

_PHASES = ("before", "Prepared", "Completed")
_HALF_SECONDS = 400.0
_DOCS = Path(__file__).parents[2] / "docs/credentials.md"
_FORGOTTEN_NODE = "forgotten"
_WHY = "its owner has thrown it away"


@dataclass(frozen=True)
class Rotated:
    """A cluster after it, and what was seen on the way."""

    shoot: Shoot
    clients: list[Clients]
    wire: dict[str, wire.Wire]
    refusal: str
    first: Path
    """The kubeconfig of before."""
    tokens: dict[str, str]
    machines: dict[str, frozenset[str]]


@pytest.fixture(scope="module")
def rotated(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rotated]:
    shoot = Shoot(landscape, "rotator", tmp_path_factory.mktemp("kubeconfigs"))
    shoot.apply(shoot.manifest(machines=2))
    try:
        shoot.wait_for_state("Succeeded", CREATION)
        yield _rotate(shoot)
    finally:
        shoot.remove()


def _rotate(shoot: Shoot) -> Rotated:
    old = wire.authorities(shoot)
    seen, tokens, machines = {}, {}, {}

    def look(phase: str) -> None:
        seen[phase] = wire.read(shoot, old)
        machines[phase] = frozenset(shoot.kubectl("get", "nodes", "-o", "name").split())
        tokens[phase] = shoot.kubectl("create", "token", "default").strip()
        _say(f"looked at {phase}")

    look("before")
    first = shoot.kubeconfig
    trusting_old, tunnel = Clients("old", Access(shoot, first)), TunnelClients("tunnel", Access(shoot, first))
    with tunnel.running():
        with trusting_old.running():
            trusting_old.await_answers()
            tunnel.await_answers()
            _say("all begins")
            shoot.gardener("credentials", "rotate", shoot.reference, "all")
            for kind in ("certificateAuthorities", "serviceAccountKey"):
                _await(shoot, kind, "Prepared")
            _await(shoot, "etcdEncryptionKey", "Completed")
            _say("prepared")
            tunnel.access = Access(shoot, _new_kubeconfig(shoot, "both"))
            look("Prepared")
            refusal = _refusal_of_completion(shoot, old)
            trusting_both = Clients("both", tunnel.access)
            trusting_both.start()
            trusting_both.await_answers()
        try:
            (given_out,) = re.findall(r"kubeconfig ([0-9a-f]{8}) of \S+ is valid until", refusal)
            shoot.gardener("credentials", "discard", shoot.reference, given_out, "--reason", _WHY)
            for what in ("ca", "serviceaccount-key"):
                shoot.gardener("credentials", "complete", shoot.reference, what)
            for kind in ("certificateAuthorities", "serviceAccountKey"):
                _await(shoot, kind, "Completed")
            _say("completed")
            trusting_both.await_answers()
            tunnel.await_answers()
        finally:
            trusting_both.stop()
        trusting_new = Clients("new", Access(shoot, _new_kubeconfig(shoot, "new")))
        with trusting_new.running():
            trusting_new.await_answers()
        look("Completed")
    return Rotated(shoot, [trusting_old, trusting_both, trusting_new, tunnel], seen, refusal, first, tokens, machines)


def _say(what: str) -> None:
    print(time.strftime("%H:%M:%S"), what)


def _await(shoot: Shoot, kind: str, phase: str) -> None:
    path = f"jsonpath={{.status.credentials.rotation.{kind}.phase}}={phase}"
    arguments = ("wait", f"--for={path}", f"shoot/{shoot.name}", f"--timeout={_HALF_SECONDS}s")
    shoot.garden(*arguments, timeout=_HALF_SECONDS + 10)


def _new_kubeconfig(shoot: Shoot, name: str) -> Path:
    path = shoot.directory / f"{shoot.name}-{name}.yaml"
    path.touch(mode=0o600)
    path.write_text(shoot.gardener("kubeconfig", "shoot", shoot.reference))
    shoot.__dict__["kubeconfig"] = path
    return path


def _refusal_of_completion(shoot: Shoot, old: frozenset[str]) -> str:
    """With a node that was forgotten: one that has joined by hand, and that no pool rolls."""
    client = next(name for name in old if name.startswith("ca-client"))
    annotations = {"credentials.gardener.cloud/certificate-issuers": json.dumps({"kubelet-client": client})}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": _FORGOTTEN_NODE, "annotations": annotations},
    }
    shoot.kubectl("create", "-f", "-", stdin=json.dumps(node))
    try:
        environment = f"GARDENER_LANDSCAPE={shoot.landscape.name}"
        return refused("env", environment, BIN / "gardener", "credentials", "complete", shoot.reference, "ca")
    finally:
        shoot.kubectl("delete", "node", _FORGOTTEN_NODE)


def test_nobody_was_refused(rotated: Rotated) -> None:
    print(*rotated.clients, sep="\n")
    assert [fault for each in rotated.clients for fault in each.failed] == []


def test_each_component_shows_and_trusts_what_the_docs_say_in_each_phase(rotated: Rotated) -> None:
    """The table there is this one, and no other."""
    cells = {name: [rotated.wire[phase][name] for phase in _PHASES] for name in rotated.wire["before"]}
    rows = [f"| {' | '.join([f'`{name}`', *seen])} |" for name, seen in cells.items()]
    print("\n".join(rows))
    documented = re.findall(r"^\| `.*(?:old|new); .*$", _DOCS.read_text(), re.MULTILINE)
    assert rows == documented


def test_the_completion_names_a_kubeconfig_and_a_node_that_somebody_forgot(rotated: Rotated) -> None:
    assert re.search(r"kubeconfig [0-9a-f]{8} of \S+ is valid until", rotated.refusal), rotated.refusal
    assert f"node {_FORGOTTEN_NODE} has an old certificate" in rotated.refusal


def test_all_machines_were_replaced_once(rotated: Rotated) -> None:
    before, prepared, completed = (rotated.machines[phase] for phase in _PHASES)
    assert not before & prepared
    assert prepared == completed


def test_what_is_old_is_not_let_in(rotated: Rotated) -> None:
    shoot = rotated.shoot
    with pytest.raises(ssl.SSLCertVerificationError):
        Access(shoot, rotated.first).ask("GET", "/version")
    for phase, accepted in (("before", False), ("Prepared", True), ("Completed", True)):
        assert _review(shoot, rotated.tokens[phase]) is accepted, phase


def _review(shoot: Shoot, token: str) -> bool:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    answer = json.loads(shoot.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(review)))
    return bool(answer["status"].get("authenticated"))


def test_every_value_in_etcd_is_encrypted_with_the_new_key(rotated: Rotated, tmp_path: Path) -> None:
    shoot = rotated.shoot
    kind = "kube-apiserver-etcd-encryption-key"
    (key,) = (each for each in shoot.secrets() if each["metadata"].get("labels", {}).get("name") == kind)
    wanted = f"k8s:enc:aescbc:v1:{decoded(key)['key'].decode()}:".encode()
    values = list(wire.stored(shoot, tmp_path, "/registry/secrets/"))
    assert values
    assert [value[: len(wanted)] for value in values if not value.startswith(wanted)] == []


def test_the_event_tells_who_has_no_kubeconfig_any_more_and_why(rotated: Rotated) -> None:
    events = json.loads(rotated.shoot.garden("get", "events", "-o", "json"))["items"]
    told = [each["message"] for each in events if each["reason"] == "KubeconfigDiscarded"]
    assert any(_WHY in each for each in told)
    assert not any(each["reason"] == "OldCredentialsLeftBehind" for each in events)
