"""Who needs old credentials: each kind of user is found by name, and nobody else."""

import base64
import json
from datetime import UTC, datetime
from typing import Any

from activities.shoot import survey
from api.contracts.kubeconfigs import Discard, IssuedKubeconfig

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SINCE = "2026-11-21T10:00:00Z"
ISSUERS = {"client": "ca-client-new", "serving": "ca-kubelet-new"}


def item(name: str, annotations: dict[str, str] | None = None, **rest: Any) -> dict[str, Any]:
    return {"kind": "Thing", "metadata": {"name": name, "namespace": "apps", "annotations": annotations or {}}, **rest}


def node(name: str, **issuers: str) -> dict[str, Any]:
    told = {each.replace("_", "-"): issuer for each, issuer in issuers.items()}
    return item(name, {"credentials.gardener.cloud/certificate-issuers": json.dumps(told)} if told else {})


def test_nodes_with_an_old_certificate_or_none_that_is_known() -> None:
    current = node("new", kubelet_client="ca-client-new", kubelet_serving="ca-kubelet-new", node_agent="ca-client-new")
    serving = node("serving", kubelet_client="ca-client-new", kubelet_serving="ca-kubelet-old")
    client = node("client", kubelet_client="ca-client-old")
    leaving = node("leaving", kubelet_client="ca-client-old")
    leaving["metadata"]["deletionTimestamp"] = SINCE

    found = list(survey.nodes([current, serving, client, leaving, node("silent")], ISSUERS))
    assert [(each.who, each.why) for each in found] == [
        ("node serving", "has an old certificate that its kubelet shows to the API server"),
        ("node client", "has an old certificate by which its kubelet is known to the API server"),
        ("node silent", "does not tell its certificates"),
    ]


def test_namespaces_that_publish_another_ca() -> None:
    maps = [item("kube-root-ca.crt", data={"ca.crt": ca}) for ca in ("both", "old")]
    maps[1]["metadata"]["namespace"] = "behind"
    assert [each.who for each in survey.namespaces(maps, "both")] == ["namespace behind"]


def test_our_own_kubeconfigs_that_trust_another_ca() -> None:
    def access(name: str, ca: str) -> dict[str, Any]:
        cluster = {"certificate-authority-data": base64.b64encode(ca.encode()).decode()}
        config = json.dumps({"clusters": [{"name": "shoot", "cluster": cluster}]})
        return item(name, data={"kubeconfig": base64.b64encode(config.encode()).decode()})

    secrets = [access("gardener", "both"), access("gardener-internal", "old"), item("token-only", data={"token": ""})]
    assert [each.who for each in survey.kubeconfigs_of_ours(secrets, "both")] == ["access gardener-internal"]


def test_extensions_that_nobody_has_reconciled() -> None:
    def asked(name: str, when: str, state: str) -> dict[str, Any]:
        return item(name, {"gardener.cloud/timestamp": when}, status={"lastOperation": {"state": state}})

    objects = [
        asked("done", "2026-11-21T10:00:05Z", "Succeeded"),
        asked("failed", "2026-11-21T10:00:05Z", "Error"),
        asked("before", "2026-11-21T09:59:59Z", "Succeeded"),
        item("never"),
    ]
    assert [each.who for each in survey.extensions(objects, SINCE)] == ["Thing failed", "Thing before", "Thing never"]


def test_kubeconfigs_that_were_given_out_and_are_still_valid() -> None:
    gone = Discard(by="zoe", at="2026-11-21T11:30:00+00:00", reason="its laptop was wiped")
    recorded = {
        "aaaaaaaa1": IssuedKubeconfig(user="ann", issuer="ca-client-old", expires="2026-11-21T13:00:00+00:00"),
        "bbbbbbbb1": IssuedKubeconfig(user="bob", issuer="ca-client-old", expires="2026-11-21T11:00:00+00:00"),
        "cccccccc1": IssuedKubeconfig(user="eve", issuer="ca-client-new", expires="2026-11-21T13:00:00+00:00"),
        "dddddddd1": IssuedKubeconfig(
            user="zoe", issuer="ca-client-old", expires="2026-11-21T13:00:00+00:00", discarded=gone
        ),
    }
    (found,) = survey.issued_kubeconfigs(recorded, "ca-client-new", NOW)
    assert str(found) == "kubeconfig aaaaaaaa of ann is valid until 2026-11-21T13:00:00+00:00"


def test_tokens_of_the_old_key() -> None:
    ours = [item("renewed", {"credentials.gardener.cloud/key-name": "new"}), item("forgotten")]
    assert [each.who for each in survey.tokens_of_ours(ours, "new")] == ["access forgotten"]

    def token(name: str, key: str) -> dict[str, Any]:
        header = base64.urlsafe_b64encode(json.dumps({"kid": key}).encode()).decode().rstrip("=")
        return item(name, data={"token": base64.b64encode(f"{header}.x.y".encode()).decode()})

    account = item("robot", secrets=[{"name": "listed"}])
    secrets = [token("listed", "old"), token("orphan", "old"), token("fresh", "new"), item("empty", data={})]
    assert [each.who for each in survey.static_tokens(secrets, [account], "new")] == ["Secret apps/orphan"]
