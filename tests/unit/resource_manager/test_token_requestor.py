"""Tokens for components that run next to an API server."""

import asyncio
import base64
import dataclasses
import json
from datetime import UTC, datetime, timedelta

import pytest
import yaml

from kube.cache import Caches
from tests.unit.kube.pki import certificates
from tests.unit.kube.waiting import until
from tests.unit.resource_manager.conftest import NAMESPACE, SECRETS
from workers.lib.token_requestor import TokenRequestor, renew_after

ACCOUNTS = "/api/v1/serviceaccounts"
SA = "serviceaccount.resources.gardener.cloud"
CA = certificates("unused")[0].decode()
LABELS = {"resources.gardener.cloud/purpose": "token-requestor", "resources.gardener.cloud/class": "shoot"}
RENEW = f"{SA}/token-renew-timestamp"


class Requestor:
    def __init__(self, source, target):
        self.source, self.target = source, target

    def want(self, name="shoot-access-kcm", data=None, labels=None, account_labels=None, **annotations):
        if account_labels:
            annotations["labels"] = account_labels
        self.source.put(
            SECRETS,
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {
                    "name": name,
                    "namespace": NAMESPACE,
                    "labels": labels or LABELS,
                    "annotations": {f"{SA}/name": "kcm", f"{SA}/namespace": "kube-system"}
                    | {f"{SA}/{key.replace('_', '-')}": value for key, value in annotations.items()},
                },
                **({"data": data} if data else {}),
            },
        )

    def get(self, name="shoot-access-kcm"):
        return self.source.find(SECRETS, name, NAMESPACE)

    def read(self, key, name="shoot-access-kcm"):
        encoded = (self.get(name).get("data") or {}).get(key)
        return base64.b64decode(encoded).decode() if encoded else None

    def annotate(self, **annotations):
        self.source.change(SECRETS, "shoot-access-kcm", NAMESPACE, {"metadata": {"annotations": annotations}})

    async def token(self, other_than=None):
        return await until(lambda: (token := self.read("token")) and token != other_than and token)


@pytest.fixture
async def requestor(source, target, clients):
    one, other = clients
    other._endpoint = dataclasses.replace(other._endpoint, ca=CA)
    caches = Caches(one)
    task = asyncio.create_task(
        TokenRequestor(
            source=one, source_caches=caches, target=other, namespaces=[NAMESPACE], secret_class="shoot"
        ).run()
    )
    yield Requestor(source, target)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await caches.close()


@pytest.mark.row(
    "token requestor", "the ServiceAccount is created with automount false, the token is written to key token"
)
async def test_an_account_and_a_token_are_made_for_a_secret_that_asks(requestor):
    requestor.want()

    token = await requestor.token()
    account = requestor.target.find(ACCOUNTS, "kcm", "kube-system")
    assert token in requestor.target.tokens
    assert account["automountServiceAccountToken"] is False
    renew = datetime.fromisoformat(requestor.get()["metadata"]["annotations"][RENEW]) - datetime.now(UTC)
    assert timedelta(hours=9, minutes=30) < renew < timedelta(hours=10, minutes=10)


@pytest.mark.row("token requestor", "kubeconfig: the user of the current context gets the token, its cluster the CA")
async def test_a_kubeconfig_gets_the_token_and_the_ca_where_it_is_used(requestor):
    config = {
        "current-context": "b",
        "contexts": [
            {"name": "a", "context": {"cluster": "a", "user": "a"}},
            {"name": "b", "context": {"cluster": "b", "user": "b"}},
        ],
        "clusters": [{"name": "a", "cluster": {"server": "A"}}, {"name": "b", "cluster": {"server": "B"}}],
        "users": [{"name": "a", "user": {}}, {"name": "b", "user": None}],
    }
    data = {"kubeconfig": base64.b64encode(json.dumps(config).encode()).decode()}
    requestor.want(data=data, inject_ca_bundle="true")

    await until(lambda: "token" in requestor.read("kubeconfig"))
    written = yaml.safe_load(requestor.read("kubeconfig"))

    assert written["users"][0]["user"] == {}
    assert written["users"][1]["user"]["token"] in requestor.target.tokens
    assert base64.b64decode(written["clusters"][1]["cluster"]["certificate-authority-data"]) == CA.encode()
    assert written["clusters"][0]["cluster"] == {"server": "A"}
    assert requestor.read("token") is None


@pytest.mark.row("token requestor", "inject-ca-bundle without a kubeconfig: key bundle.crt")
async def test_the_ca_comes_as_a_bundle_where_there_is_no_kubeconfig(requestor):
    requestor.want(inject_ca_bundle="true")
    await requestor.token()

    assert requestor.read("bundle.crt") == CA


@pytest.mark.row("token requestor", "a token that works is not renewed early")
async def test_a_token_that_is_good_is_left_alone(requestor):
    """A new token on every look would restart nothing but fill the audit log and etcd."""
    requestor.want()
    token = await requestor.token()
    requestor.annotate(unrelated="1")
    await asyncio.sleep(0.1)

    assert requestor.read("token") == token
    assert len(requestor.target.tokens) == 1


@pytest.mark.row("token requestor", "reasons to renew early: timestamp, token, CA, TokenReview")
@pytest.mark.parametrize("why", ["timestamp removed", "time has come", "revoked"])
async def test_a_token_is_renewed_when(requestor, why):
    requestor.want()
    token = await requestor.token()
    if why == "timestamp removed":
        requestor.annotate(**{RENEW: None})
    elif why == "time has come":
        requestor.annotate(**{RENEW: "2026-01-01T00:00:00Z"})
    else:
        del requestor.target.tokens[token]
        requestor.annotate(touched="1")

    await requestor.token(other_than=token)


@pytest.mark.row("token requestor", "target-secret-name, target-secret-namespace: the token is written there alone")
async def test_a_token_for_the_target_itself_is_written_there_and_nowhere_else(requestor):
    prefix = "token-requestor.resources.gardener.cloud/target-secret"
    requestor.source.put(
        SECRETS,
        {
            "kind": "Secret",
            "metadata": {
                "name": "s",
                "namespace": NAMESPACE,
                "labels": LABELS,
                "annotations": {
                    f"{SA}/name": "vpn",
                    f"{SA}/namespace": "kube-system",
                    f"{prefix}-name": "there",
                    f"{prefix}-namespace": "kube-system",
                },
            },
            "data": {"token": "b2xk", "other": "eA=="},
        },
    )

    there = await until(lambda: requestor.target.find(SECRETS, "there", "kube-system"))
    assert base64.b64decode(there["data"]["token"]).decode() in requestor.target.tokens
    await until(lambda: requestor.get("s")["data"] == {"other": "eA=="})

    requestor.target.remove(SECRETS, "there", "kube-system")
    requestor.source.change(SECRETS, "s", NAMESPACE, {"metadata": {"annotations": {"touched": "1"}}})
    await until(lambda: requestor.target.find(SECRETS, "there", "kube-system"))


@pytest.mark.row("token requestor", "target Secret: token, bundle.crt or kubeconfig leave the source Secret")
async def test_a_kubeconfig_in_the_target_secret_survives_renewals(requestor):
    """The kubeconfig leaves the source Secret at the first time: at a renewal it is in the target Secret alone."""
    prefix = "token-requestor.resources.gardener.cloud/target-secret"
    kubeconfig = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://api"}}],
        "users": [{"name": "u", "user": {}}],
    }
    requestor.want("s", data={"kubeconfig": base64.b64encode(yaml.safe_dump(kubeconfig).encode()).decode()})
    annotations = {f"{prefix}-name": "there", f"{prefix}-namespace": "kube-system"}
    requestor.source.change(SECRETS, "s", NAMESPACE, {"metadata": {"annotations": annotations}})

    def token():
        there = requestor.target.find(SECRETS, "there", "kube-system")
        if not there or "kubeconfig" in (requestor.get("s").get("data") or {}):
            return None
        assert there["data"].keys() == {"kubeconfig"}
        return yaml.safe_load(base64.b64decode(there["data"]["kubeconfig"]))["users"][0]["user"]["token"]

    first = await until(token)
    past = {"metadata": {"annotations": {RENEW: "2020-01-01T00:00:00Z"}}}
    requestor.source.change(SECRETS, "s", NAMESPACE, past)
    renewed = await until(lambda: (now := token()) != first and now)
    assert renewed in requestor.target.tokens


@pytest.mark.row("token requestor", "labels of the account are those of the annotation")
async def test_labels_of_the_account_are_what_the_secret_says(requestor):
    requestor.target.put(
        ACCOUNTS,
        {"kind": "ServiceAccount", "metadata": {"name": "kcm", "namespace": "kube-system", "labels": {"old": "1"}}},
    )
    requestor.want(account_labels='{"new": "2"}')
    await requestor.token()

    account = requestor.target.find(ACCOUNTS, "kcm", "kube-system")
    assert account["metadata"]["labels"] == {"new": "2"}
    assert account["automountServiceAccountToken"] is False


@pytest.mark.row("token requestor", "only Secrets with the purpose, and of the class that is configured")
@pytest.mark.parametrize(
    "labels",
    [
        {"resources.gardener.cloud/purpose": "token-requestor", "resources.gardener.cloud/class": "garden"},
        {"resources.gardener.cloud/purpose": "else"},
    ],
)
async def test_secrets_of_others_are_not_touched(requestor, labels):
    requestor.want("theirs", labels=labels)
    requestor.want()
    await requestor.token()

    assert "data" not in requestor.get("theirs")


async def test_no_token_is_logged(requestor, caplog):
    caplog.set_level("DEBUG")
    requestor.want()
    token = await requestor.token()
    requestor.target.tokens.clear()
    requestor.annotate(touched="1")
    other = await requestor.token(other_than=token)

    assert token not in caplog.text
    assert other not in caplog.text


@pytest.mark.row("token requestor", "renewal after 80 % of the lifetime or of 24 h, with up to 5 % of chance")
@pytest.mark.parametrize(("lifetime", "chance", "pause"), [(10, 0, 8), (10, 1, 8.4), (24, 0, 19.2), (90 * 24, 0, 19.2)])
def test_a_token_is_renewed_at_80_percent_and_daily_at_the_latest(lifetime, chance, pause):
    assert renew_after(timedelta(hours=lifetime), chance) == timedelta(hours=pause)
