"""Process that prepares the ManagedSeeds of a landscape, as an operator does elsewhere.

It opens the cloud's firewall for the machines of a Shoot that a ManagedSeed makes a seed: they alone reach the garden,
Temporal and the object store. The machines of a namespace with a label reach the object store. It also gives
provider-local of each seed its identity for Temporal, because a seed that is deleted and added again has a new
installation of it. It runs in the network of the cloud, whose firewall it sets.
"""

import asyncio
import ipaddress
import logging
import sys
from collections.abc import AsyncIterator, Callable, Container, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import click

from api.constants import GARDEN_NAMESPACE
from api.decisions import managed_seeds
from api.local import MACHINE_LABEL, OBJECT_STORE_LABEL, infrastructure_namespace
from api.resources import CONTROLLER_INSTALLATION, MANAGED_SEED, NAMESPACE, POD, SHOOT
from kube.cache import Cache, Key
from kube.client import KubeClient, Object, WatchEvent
from kube.controller import Controller, Requeue, TryAgain
from kube.errors import ApiError
from kube.kubeconfig import endpoint_of
from landscape import extensions, network
from landscape import plan as plans
from landscape.code import ROOMS, code_digest
from landscape.plan import Plan
from landscape.processes import ProcessSpec
from workers.cli.kubeconfig import requested_kubeconfig

log = logging.getLogger("landscape.managed_seeds")

NAME = "cloud/managed-seeds"
_ACCESS_SECONDS = 600
"""Validity of the kubeconfigs of Shoots that this process requests."""
_SYNC_SECONDS = 600.0
"""Period in which the identities are written again, for a seed whose Secrets were deleted."""
_AGAIN_SECONDS = 5.0


def process(plan: Plan) -> ProcessSpec:
    argv = (sys.executable, "-m", "landscape.managed_seeds", "--landscape", plan.name)
    version = {"GARDENER_VERSION": code_digest(*ROOMS), "GARDENER_LANDSCAPE": plan.name}
    return ProcessSpec(NAME, argv, plan.cloud.netns, version)


def addresses(registered: Iterable[Object], shoots: Iterable[Object], machines: Iterable[Object]) -> list[str]:
    """Addresses of the machines of all Shoots that ManagedSeeds make seeds."""
    names = {managed_seeds.shoot_name(each) for each in registered}
    namespaces = {
        infrastructure_namespace(technical_id)
        for each in shoots
        if each["metadata"]["name"] in names and (technical_id := (each.get("status") or {}).get("technicalID"))
    }
    return _addresses_in(namespaces, machines)


def addresses_with_backups(labelled: Iterable[Object], machines: Iterable[Object]) -> list[str]:
    """Addresses of the machines of namespaces that have the label of the object store."""
    return _addresses_in({each["metadata"]["name"] for each in labelled}, machines)


def _addresses_in(namespaces: Container[str], machines: Iterable[Object]) -> list[str]:
    running = (each for each in machines if each["metadata"]["namespace"] in namespaces)
    found = {str(address) for each in running if (address := (each.get("status") or {}).get("podIP"))}
    return sorted(found, key=ipaddress.ip_address)


class Firewall:
    """Controller of the firewall's rules for the machines of seeds."""

    def __init__(self, plan: Plan, registered: Cache, shoots: Cache, cloud: KubeClient) -> None:
        self._plan = plan
        self._registered, self._shoots = registered, shoots
        self._machines = Cache(cloud, POD, labels=MACHINE_LABEL)
        self._labelled = Cache(cloud, NAMESPACE, labels=f"{OBJECT_STORE_LABEL}=true")

    async def run(self) -> None:
        """Run until cancelled."""
        controller = Controller("firewall of managed seeds", self._reconcile, workers=1)
        rules = Key(None, "rules")
        caches = (self._registered, self._shoots, self._machines, self._labelled)
        async with self._machines, self._labelled:
            await asyncio.gather(*(each.synced() for each in caches))
            controller.enqueue(rules)
            for each in caches:
                controller.watch(each, keys=lambda _: [rules])
            await controller.run()

    async def _reconcile(self, _: Key) -> None:
        """Replace all rules at once. A second run writes the same rules."""
        machines = self._machines.list()
        found = addresses(self._registered.list(), self._shoots.list(), machines)
        backups = addresses_with_backups(self._labelled.list(), machines)
        if await network.admit_machines(self._plan, found, backups):
            log.info("machines of managed seeds: %s", ", ".join(found) or "none")
            log.info("machines that reach the object store: %s", ", ".join(backups) or "none")


Connect = Callable[[str], AbstractAsyncContextManager[KubeClient]]
"""Connection to a Shoot of namespace garden by its name, as its administrator."""


def by_kubeconfig(garden: KubeClient) -> Connect:
    """Connections by kubeconfigs that the garden issues."""

    @asynccontextmanager
    async def connect(shoot: str) -> AsyncIterator[KubeClient]:
        config, _ = await requested_kubeconfig(garden, GARDEN_NAMESPACE, shoot, expiration=_ACCESS_SECONDS)
        async with KubeClient(endpoint_of(config)) as client:
            yield client

    return connect


class Identities:
    """Controller of provider-local's identity for Temporal in each seed of the landscape and each managed seed."""

    def __init__(self, plan: Plan, registered: Cache, garden: KubeClient, connect: Connect) -> None:
        self._plan = plan
        self._registered = registered
        self._connect = connect
        self._installations = Cache(
            garden, CONTROLLER_INSTALLATION, fields=f"spec.registrationRef.name={extensions.PROVIDER_LOCAL}"
        )

    async def run(self) -> None:
        """Run until cancelled."""
        controller = Controller("identities of managed seeds", self._reconcile, workers=1)
        async with self._installations:
            await asyncio.gather(self._registered.synced(), self._installations.synced())
            controller.watch(self._installations)
            controller.watch(self._registered, keys=self._of_seed)
            await controller.run()

    def _of_seed(self, event: WatchEvent) -> list[Key]:
        name = event.object["metadata"]["name"]
        return [Key(None, each["metadata"]["name"]) for each in self._installations.list() if _seed_of(each) == name]

    async def _reconcile(self, key: Key) -> Requeue | None:
        """Write the Secrets into the seed. A second run writes the same ones."""
        installation = self._installations.get(key.name)
        if installation is None or installation["metadata"].get("deletionTimestamp"):
            return None
        seed = _seed_of(installation)
        connection = self._connection(seed)
        if connection is None:
            return None
        try:
            async with connection as client:
                await extensions.identify(client, self._plan, seed, key.name)
        except (ApiError, click.ClickException) as error:
            raise TryAgain(f"seed {seed}: {error}", after=_AGAIN_SECONDS) from None
        return Requeue(_SYNC_SECONDS)

    def _connection(self, seed: str) -> AbstractAsyncContextManager[KubeClient] | None:
        """Connection to a seed; None if a ManagedSeed has made it, and is away or in deletion."""
        if seed in {each.name for each in self._plan.seeds}:
            return KubeClient.from_kubeconfig(self._plan.kubeconfig(seed))
        owner = self._registered.get(seed, GARDEN_NAMESPACE)
        if owner is None or owner["metadata"].get("deletionTimestamp"):
            return None
        return self._connect(managed_seeds.shoot_name(owner))


def _seed_of(installation: Object) -> str:
    return str((installation["spec"].get("seedRef") or {}).get("name") or "")


@click.command()
@click.option("--landscape", required=True)
def main(landscape: str) -> None:
    """Prepare the ManagedSeeds of a landscape until stopped."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    plan = plans.load(landscape)
    if plan is None:
        raise click.ClickException(f"there is no landscape {landscape}")

    async def serve() -> None:
        async with (
            KubeClient.from_kubeconfig(plan.kubeconfig("garden")) as garden,
            KubeClient.from_kubeconfig(plan.kubeconfig("cloud")) as cloud,
            Cache(garden, MANAGED_SEED, GARDEN_NAMESPACE) as registered,
            Cache(garden, SHOOT, GARDEN_NAMESPACE) as shoots,
        ):
            await asyncio.gather(
                Firewall(plan, registered, shoots, cloud).run(),
                Identities(plan, registered, garden, by_kubeconfig(garden)).run(),
            )

    asyncio.run(serve())


if __name__ == "__main__":
    main()
