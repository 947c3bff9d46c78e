"""No private key and no token of a run is found in its histories, logs and events; histories are encrypted.

The keys and tokens looked for are those that stand in the Secrets of a Shoot while it is there.
"""

import base64
import json
import re
import ssl
import urllib.request

import pytest

from tests.landscape import leaks
from tests.landscape.leaks import Needles, found
from tests.landscape.readers import history_reader
from tests.landscape.shoots import Shoot, temporal, temporal_command
from workers.lib.codec import ENCODING

pytestmark = [pytest.mark.landscape, pytest.mark.timeout(120, func_only=True)]


@pytest.fixture(scope="module")
def needles(shoot: Shoot) -> Needles:
    return leaks.needles(shoot)


def test_the_secrets_of_a_shoot_are_full_of_keys_and_tokens(needles: Needles) -> None:
    """Else the other tests would look for nothing."""
    places = {place for where in needles.values() for place in where}

    for name in (r"/ca: ca\.key", "/kube-apiserver-.*tls.key", "/service-account-key-", "/ssh-keypair-"):
        assert any(re.search(name, place) for place in places), name
    for name in ("/shoot-access-.*token", "-static-token-", "/vpn-seed-server-tlsauth", "-user-data"):
        assert any(re.search(name, place) for place in places), name
    for name in ("garden/gardenlet-kubeconfig: kubeconfig", "kube-system/bootstrap-token-.*: token-secret"):
        assert any(re.search(name, place) for place in places), name
    for name in (
        r"\.ca-client: ca\.key",
        "local: kubeconfig",
        "backup-local: secretAccessKey",
        "internal-domain: tsigSecret",
    ):
        assert any(re.search(name, place) for place in places), name


async def test_no_history_has_any_of_them(shoot: Shoot, needles: Needles) -> None:
    """As stored, and as the codec reads it."""
    raw, clear = await leaks.histories(shoot)

    assert found(needles, raw) == []
    assert found(needles, clear) == []


def test_no_log_has_any_of_them(shoot: Shoot, needles: Needles) -> None:
    wrong = {name: where for name, log in leaks.logs(shoot).items() if (where := found(needles, log))}

    assert wrong == {}


def test_no_event_has_any_of_them(shoot: Shoot, needles: Needles) -> None:
    assert found(needles, leaks.events(shoot)) == []


def test_no_metric_has_any_of_them(shoot: Shoot, needles: Needles) -> None:
    wrong = {name: where for name, told in leaks.metrics(shoot).items() if (where := found(needles, told))}

    assert wrong == {}


def test_temporal_itself_neither_tells_nor_keeps_any_of_them(shoot: Shoot, needles: Needles) -> None:
    """Its metrics, its log, and its files: there is more in them than histories."""
    wrong = {
        name: where for name, told in leaks.temporal_itself(shoot.landscape).items() if (where := found(needles, told))
    }

    assert wrong == {}


def test_no_command_line_and_no_status_has_any_of_them(shoot: Shoot, needles: Needles) -> None:
    assert found(needles, leaks.command_lines()) == []
    assert found(needles, leaks.objects(shoot)) == []


# Encryption


async def test_every_payload_is_encrypted_where_it_is_stored(shoot: Shoot) -> None:
    """But search attributes, which are there to be searched."""
    client = await temporal(shoot.landscape)
    query = f'GardenerShoot = "{shoot.reference}"'
    encodings: set[bytes] = set()
    count = 0
    async for workflow in client.list_workflows(query):
        handle = client.get_workflow_handle(workflow.id, run_id=workflow.run_id)
        async for event in handle.fetch_history_events():
            for payload in leaks.payloads(event):
                encodings.add(payload.metadata.get("encoding", b""))
                count += 1

    assert count > 100
    assert encodings == {ENCODING}


def test_the_command_line_of_temporal_reads_them_by_the_codec_endpoint_only(shoot: Shoot) -> None:
    facts = shoot.landscape.facts["temporal"]
    show = ["workflow", "show", "--workflow-id", shoot.flows()[-1]["workflowId"]]

    assert _readable(temporal_command(shoot.landscape, *show)) == []
    with history_reader(shoot.landscape) as token:
        reader = ["--codec-endpoint", facts["codec"], "--codec-auth", f"Bearer {token}"]
        decoded = temporal_command(shoot.landscape, *show, *reader, SSL_CERT_FILE=facts["codecCa"])
    assert any(shoot.technical_id in each for each in _readable(decoded))


def test_the_ui_may_ask_the_codec_endpoint_and_no_other_page(shoot: Shoot) -> None:
    facts = shoot.landscape.facts["temporal"]

    assert _allowed_origin(facts, facts["ui"]) == facts["ui"]
    assert _allowed_origin(facts, "http://elsewhere.example") is None


def _readable(history: str) -> list[str]:
    """Inputs of activities that are not encrypted."""
    scheduled = [event.get("activityTaskScheduledEventAttributes") for event in json.loads(history)["events"]]
    payloads = [payload for each in scheduled if each for payload in each["input"]["payloads"]]
    assert payloads
    clear = [each for each in payloads if base64.b64decode(each["metadata"]["encoding"]) != ENCODING]
    return [base64.b64decode(each["data"]).decode() for each in clear]


def _allowed_origin(facts: dict[str, str], origin: str) -> str | None:
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    request = urllib.request.Request(f"{facts['codec']}/decode", method="OPTIONS", headers=headers)
    trust = ssl.create_default_context(cafile=facts["codecCa"])
    with urllib.request.urlopen(request, timeout=10, context=trust) as answer:
        allowed: str | None = answer.headers.get("Access-Control-Allow-Origin")
    return allowed
