"""All credentials of a cluster are rotated under clients: no request is refused, and no old credential is left.

Meanwhile processes of ours are killed, in both halves.
"""

import asyncio
import json
import re
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.landscape import leaks, pods, wire
from tests.landscape.clients import RATE, Access, Clients, ReadingAndWriting, ThroughTheTunnel, table
from tests.landscape.conftest import BIN, Landscape
from tests.landscape.leaks import Needles
from tests.landscape.shoots import Shoot, refused, started, temporal
from tests.pages import check_table

pytestmark = [pytest.mark.slow, pytest.mark.landscape, pytest.mark.timeout(1200, func_only=True)]

_PHASES = ("before", "Prepared", "Completed")
_HALF_SECONDS = 400.0
_FORGOTTEN_NODE = "forgotten"
_WHY = "its owner has thrown it away"
_VICTIMS = (("wait_apiserver", "{seed}/gardenlet"), ("wait_worker", "garden/controller-manager"))
"""Once this task has started in a half of the rotation, that process is killed."""


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
    needles: Needles
    """Keys and tokens, old ones and new ones."""
    command_lines: list[bytes]
    starts: dict[str, tuple[int, int]]
    """How often the processes that were killed had been started before, and afterwards."""


@pytest.fixture(scope="module")
def rotated(landscape: Landscape, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rotated]:
    shoot = Shoot(landscape, "rotator", tmp_path_factory.mktemp("kubeconfigs"))
    with shoot.created(shoot.manifest(machines=2)):
        yield _rotate(shoot)


def _rotate(shoot: Shoot) -> Rotated:
    old = wire.authorities(shoot)
    seen, tokens, machines = {}, {}, {}
    needles: Needles = {}
    lines = []

    def look(phase: str) -> None:
        seen[phase] = wire.read(shoot, old)
        machines[phase] = frozenset(shoot.kubectl("get", "nodes", "-o", "name").split())
        tokens[phase] = shoot.kubectl("create", "token", "default").strip()
        needles.update(leaks.needles(shoot))
        lines.append(leaks.command_lines())
        _say(f"looked at {phase}")

    _serve(shoot)
    look("before")
    first = shoot.kubeconfig
    before = _starts(shoot.landscape)
    reading = [ReadingAndWriting(f"client-{number}", Access(shoot, first)) for number in (1, 2, 3)]
    clients: list[Clients] = [*reading, ThroughTheTunnel("tunnel", Access(shoot, first))]
    with ExitStack() as running:
        running.callback(lambda: print(table(clients), *(fault for each in clients for fault in each.failed), sep="\n"))
        for each in clients:
            running.enter_context(each.running())
        _await_answers(clients)
        _say("all begins")
        shoot.gardener("credentials", "rotate", shoot.reference, "all")
        asyncio.run(_kill(shoot))
        for kind in ("certificateAuthorities", "serviceAccountKey"):
            shoot.wait_for_rotation(kind, "Prepared", _HALF_SECONDS)
        shoot.wait_for_rotation("etcdEncryptionKey", "Completed", _HALF_SECONDS)
        _say("prepared")
        look("Prepared")
        refusal = _refusal_of_completion(shoot, old)
        _refresh(shoot, clients, "both")
        (given_out,) = re.findall(r"kubeconfig ([0-9a-f]{8}) of \S+ is valid until", refusal)
        shoot.gardener("credentials", "discard", shoot.reference, given_out, "--reason", _WHY)
        for what in ("ca", "serviceaccount-key"):
            shoot.gardener("credentials", "complete", shoot.reference, what)
        asyncio.run(_kill(shoot))
        for kind in ("certificateAuthorities", "serviceAccountKey"):
            shoot.wait_for_rotation(kind, "Completed", _HALF_SECONDS)
        _say("completed")
        _await_answers(clients)
        _refresh(shoot, clients, "new")
        look("Completed")
    after = _starts(shoot.landscape)
    starts = {name: (before[name], after[name]) for name in _victims(shoot)}
    return Rotated(shoot, clients, seen, refusal, first, tokens, machines, needles, lines, starts)


def _serve(shoot: Shoot) -> None:
    """A webhook and an API of the owner's own, as one runs what must always be there."""
    items = [pods.namespace(), *pods.webhook(2, api=True)]
    shoot.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    shoot.kubectl("-n", pods.PROBE, "rollout", "status", "deployment/webhook", "--timeout=90s")
    shoot.kubectl("wait", "--for=condition=Available", f"apiservice/v1.{pods.GROUP}", "--timeout=60s")


def _refresh(shoot: Shoot, clients: list[Clients], trusting: str) -> None:
    """All clients take new credentials, one after another."""
    access = Access(shoot, _new_kubeconfig(shoot, trusting))
    for each in clients:
        each.trust(trusting, access)
        each.await_answers()


def _await_answers(clients: list[Clients]) -> None:
    for each in clients:
        each.await_answers()


async def _kill(shoot: Shoot) -> None:
    client = await temporal(shoot.landscape)
    for (task, _), victim in zip(_VICTIMS, _victims(shoot), strict=True):
        await started(client, shoot, task, "Reconcile")
        _say(f"kill {victim} at {task}")
        shoot.landscape.gardener("kill", victim)


def _victims(shoot: Shoot) -> list[str]:
    return [victim.format(seed=shoot.seed) for _, victim in _VICTIMS]


def _starts(landscape: Landscape) -> dict[str, int]:
    return {name: process["starts"] for name, process in landscape.status["processes"].items()}


def _say(what: str) -> None:
    print(time.strftime("%H:%M:%S"), what)


def _new_kubeconfig(shoot: Shoot, name: str) -> Path:
    path = shoot.directory / f"{shoot.name}-{name}.yaml"
    path.touch(mode=0o600)
    path.write_text(shoot.gardener("kubeconfig", "shoot", shoot.reference))
    shoot.__dict__["kubeconfig"] = path
    return path


def _refusal_of_completion(shoot: Shoot, old: frozenset[str]) -> str:
    """The refusal of a completion because of a node that joined by hand, and that no pool rolls."""
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


def test_no_request_was_refused_during_the_rotation(rotated: Rotated) -> None:
    """Three clients that read and write, and one whose requests pass the tunnel."""
    assert [fault for each in rotated.clients for fault in each.failed] == []
    for each in rotated.clients:
        assert {trusted for _, trusted in each.tallies} == {"old", "both", "new"}
        if isinstance(each, ReadingAndWriting):
            assert each.rate > RATE / 2, f"{each.name} had a machine that was too slow for it"


def test_processes_of_ours_were_killed_on_the_way(rotated: Rotated) -> None:
    assert rotated.starts
    for name, (before, after) in rotated.starts.items():
        assert after - before == 2, f"{name} was started {after - before} times, and not once in each half"


def test_each_component_shows_and_trusts_what_the_docs_say_in_each_phase(rotated: Rotated) -> None:
    """The table there is this one, and no other."""
    cells = {name: [rotated.wire[phase][name] for phase in _PHASES] for name in rotated.wire["before"]}
    print(*cells.items(), sep="\n")
    check_table("credentials.md", "wire", ([f"`{name}`", *seen] for name, seen in cells.items()))


def test_the_completion_names_a_kubeconfig_and_a_node_with_old_credentials(rotated: Rotated) -> None:
    assert re.search(r"kubeconfig [0-9a-f]{8} of \S+ is valid until", rotated.refusal), rotated.refusal
    assert f"node {_FORGOTTEN_NODE} has an old certificate" in rotated.refusal


def test_all_machines_were_replaced_once(rotated: Rotated) -> None:
    before, prepared, completed = (rotated.machines[phase] for phase in _PHASES)
    assert not before & prepared
    assert prepared == completed


def test_old_credentials_are_refused_after_the_completion(rotated: Rotated) -> None:
    shoot = rotated.shoot
    with pytest.raises(ssl.SSLCertVerificationError):
        Access(shoot, rotated.first).connect()
    for phase, accepted in (("before", False), ("Prepared", True), ("Completed", True)):
        assert _review(shoot, rotated.tokens[phase]) is accepted, phase


def _review(shoot: Shoot, token: str) -> bool:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    answer = json.loads(shoot.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(review)))
    return bool(answer["status"].get("authenticated"))


def test_every_value_in_etcd_is_encrypted_with_the_new_key(rotated: Rotated, tmp_path: Path) -> None:
    assert wire.otherwise_encrypted(rotated.shoot, tmp_path, "aescbc", "/registry/secrets/") == []


def test_an_event_names_the_discarded_kubeconfig_and_the_reason(rotated: Rotated) -> None:
    events = json.loads(rotated.shoot.garden("get", "events", "-o", "json"))["items"]
    told = [each["message"] for each in events if each["reason"] == "KubeconfigDiscarded"]
    assert any(_WHY in each for each in told)
    assert not any(each["reason"] == "OldCredentialsLeftBehind" for each in events)


async def test_no_old_and_no_new_secret_is_anywhere_but_in_secrets(rotated: Rotated) -> None:
    """In histories, logs, events, metrics, command lines, and what shows how it runs."""
    places = {place for where in rotated.needles.values() for place in where}
    shoot, kinds = rotated.shoot, ("ca", "service-account-key", "kube-apiserver-etcd-encryption-key")
    for kind in kinds:
        named = {
            each.split(":")[0] for each in places if re.match(rf"{shoot.technical_id}/{kind}(-[0-9a-f]+)*: ", each)
        }
        assert len(named) > 1, f"old and new {kind}"
    assert await leaks.found_anywhere(shoot, rotated.needles, rotated.command_lines) == {}
