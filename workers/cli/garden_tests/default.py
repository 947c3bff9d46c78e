"""Tests of a running Shoot that change nothing but a namespace of their own."""

import base64
import secrets

from api import resources
from kube.exec import run_in_pod
from workers.cli.garden_tests.context import MANAGER, RUN_LABEL, Context, expect, is_ready
from workers.cli.garden_tests.model import Label, garden_test

_LOOKUP = "getent hosts {name} || nslookup {name}"


@garden_test("the conditions of the Shoot hold", Label.DEFAULT, timeout=600)
async def conditions(context: Context) -> None:
    await context.reconciled()
    await context.healthy()


@garden_test("the number of ready nodes fits the worker pools", Label.DEFAULT, timeout=600)
async def nodes(context: Context) -> None:
    workers = await context.needs_workers()
    least, most = sum(each["minimum"] for each in workers), sum(each["maximum"] for each in workers)
    cluster = await context.cluster()

    await context.wait_until(
        cluster,
        resources.NODE,
        None,
        lambda found: least <= sum(map(is_ready, found)) <= most,
        what=f"{least} to {most} nodes are ready",
    )


@garden_test("a Deployment runs", Label.DEFAULT, timeout=600)
async def deployment(context: Context) -> None:
    await context.needs_workers()
    async with context.own_namespace("deployment") as namespace:
        await context.deploy(namespace)


@garden_test("a pod finds the API server by DNS", Label.DEFAULT, timeout=600)
async def dns(context: Context) -> None:
    await context.needs_workers()
    async with context.own_namespace("dns") as namespace:
        pod = await context.deploy(namespace)
        name = "kubernetes.default.svc.cluster.local"
        cluster = await context.cluster()
        address = (await cluster.get(resources.SERVICE, "kubernetes", "default"))["spec"]["clusterIP"]
        ran = await run_in_pod(cluster, namespace, pod, ["sh", "-c", _LOOKUP.format(name=name)], seconds=60)
        expect(ran.status == 0 and address in ran.output, f"{name} is not {address} in a pod: {ran.output.strip()}")


@garden_test("logs of a pod, and a program in it, reach the user", Label.DEFAULT, timeout=600)
async def tunnel(context: Context) -> None:
    """Both go from the API server to the kubelet, through the tunnel."""
    await context.needs_workers()
    async with context.own_namespace("tunnel") as namespace:
        pod = await context.deploy(namespace)
        cluster = await context.cluster()
        log = str(await cluster.request("GET", resources.POD.path(namespace, pod, "log")))
        expect(log.strip() == "ready", f"the log of the pod is {log.strip()!r}, must be 'ready'")
        sign = secrets.token_hex(8)
        ran = await run_in_pod(cluster, namespace, pod, ["sh", "-c", f"echo {sign}; exit 3"])
        expect(ran.output.strip() == sign, f"the program printed {ran.output.strip()!r}, must print {sign!r}")
        expect(ran.status == 3, f"the program ended with {ran.status}, must be 3")


@garden_test("a Secret is stored, and the garden tells how Secrets are encrypted", Label.DEFAULT, timeout=300)
async def encryption(context: Context) -> None:
    """The API gives no access to etcd, so the test reads what the garden reports. Secrets need no entry in it."""
    found = ((await context.live()).get("status") or {}).get("credentials", {}).get("encryptionAtRest") or {}
    provider = (found.get("provider") or {}).get("type")
    expect(provider not in (None, "", "identity"), f"status.credentials.encryptionAtRest names the provider {provider}")
    async with context.own_namespace("encryption") as namespace:
        cluster, value = await context.cluster(), base64.b64encode(secrets.token_bytes(24)).decode()
        metadata = {"name": "kept", "namespace": namespace, "labels": {RUN_LABEL: context.run}}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"key": value}}
        await cluster.apply(secret, manager=MANAGER)
        kept = (await cluster.get(resources.SECRET, "kept", namespace))["data"]["key"]
        expect(kept == value, "a Secret has another value than was written")


TESTS = (conditions, nodes, deployment, dns, tunnel, encryption)
