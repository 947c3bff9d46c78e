"""An extension of your own, as a process beside the seed: types ``local-ext-before``, ``local-ext`` and
``local-ext-after-worker``, which differ only in when a Shoot's flow asks for them.

For each Extension object it writes ConfigMap ``extension-<type>`` beside the control plane, with the time, the owner's
greeting out of ``providerConfig``, and whether it found the Shoot's API server and machines there. Types that are
deployed after the API server also write the ConfigMap into the shoot. See README.md.
"""

import asyncio
import dataclasses
import logging
from pathlib import Path
from typing import Any

import click

from api.resources import CONFIG_MAP, DEPLOYMENT, EXTENSION, MACHINE_DEPLOYMENT, SECRET
from api.times import micro_timestamp
from kube.cache import Caches
from kube.client import KubeClient
from workers.extension import (
    Actuator,
    Extension,
    apply_managed_resource,
    delete_managed_resource,
    delete_quietly,
    serve,
)

NAME = "local-ext"
"""Name of the ControllerRegistration, by which the gardenlet finds the heartbeat of this extension."""


class LocalExtension(Actuator):
    """Actuator of one type. Every method may run twice: it writes the same again, or finds nothing to delete."""

    resource = EXTENSION

    def __init__(self, seed: KubeClient, caches: Caches, type_: str, *, in_shoot: bool) -> None:
        super().__init__(seed)
        self.type = type_
        self._caches = caches
        self._in_shoot = in_shoot

    async def reconcile(self, extension: Extension) -> dict[str, Any]:
        """Write the ConfigMap beside the control plane, and send it to the shoot."""
        data = await self._findings(extension)
        await self._seed.apply(_config_map(self._name, extension.namespace, data), manager=NAME)
        if self._in_shoot:
            objects = [_config_map(self._name, "kube-system", data)]
            await apply_managed_resource(self._seed, extension.namespace, self._name, objects, manager=NAME)
        condition = {
            "type": "ControlPlaneHealthy",
            "status": "True",
            "reason": "HealthCheckSuccessful",
            "message": f"ConfigMap {self._name} is there.",
            "lastTransitionTime": data["at"],
            "lastUpdateTime": data["at"],
        }
        return {"conditions": [condition], "state": {"greeting": data["greeting"]}}

    async def delete(self, extension: Extension) -> None:
        """Delete the object in the shoot first: that needs the API server, which still answers now."""
        await self._delete(extension, keep_objects=False)

    async def force_delete(self, extension: Extension) -> None:
        """Delete only the objects in the seed: the shoot cannot be reached any more."""
        await delete_quietly(self._seed, SECRET, f"managedresource-{self._name}", extension.namespace)
        await delete_quietly(self._seed, CONFIG_MAP, self._name, extension.namespace)

    async def migrate(self, extension: Extension) -> dict[str, Any]:
        """Leave the shoot as it is; ``state`` moves to the destination."""
        await self._delete(extension, keep_objects=True)
        return {"state": extension.status.get("state")}

    async def _delete(self, extension: Extension, *, keep_objects: bool) -> None:
        if self._in_shoot:
            await delete_managed_resource(
                self._seed, self._caches, extension.namespace, self._name, keep_objects=keep_objects
            )
        await delete_quietly(self._seed, CONFIG_MAP, self._name, extension.namespace)

    @property
    def _name(self) -> str:
        return f"extension-{self.type}"

    async def _findings(self, extension: Extension) -> dict[str, str]:
        api_server = await self._seed.find(DEPLOYMENT, "kube-apiserver", extension.namespace)
        machines = await self._seed.list(MACHINE_DEPLOYMENT, extension.namespace)
        return {
            "at": micro_timestamp(),
            "greeting": str((extension.spec.get("providerConfig") or {}).get("greeting", "hello")),
            "apiServer": str(api_server is not None).lower(),
            "machines": str(bool(machines)).lower(),
        }


def _config_map(name: str, namespace: str, data: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}


def _seed(kubeconfig: str | None, token_file: Path | None) -> KubeClient:
    """A client of the seed; the token of a ServiceAccount takes the place of the kubeconfig's own credentials."""
    client = KubeClient.from_kubeconfig(kubeconfig) if kubeconfig else KubeClient.in_cluster()
    if token_file is None:
        return client
    return KubeClient(dataclasses.replace(client.endpoint, certificate=b"", key=b"", token="", token_file=token_file))


async def run(kubeconfig: str | None, namespace: str, token_file: Path | None = None) -> None:
    """Serve all types until cancelled. A restarted process continues from the status of the objects."""
    async with _seed(kubeconfig, token_file) as seed:
        caches = Caches(seed)
        actuators = [
            LocalExtension(seed, caches, f"{NAME}-before", in_shoot=False),
            LocalExtension(seed, caches, NAME, in_shoot=True),
            LocalExtension(seed, caches, f"{NAME}-after-worker", in_shoot=True),
        ]
        try:
            await serve(caches, actuators, name=NAME, namespace=namespace)
        finally:
            await caches.close()


@click.command()
@click.option("--kubeconfig", type=click.Path(exists=True, dir_okay=False), help="Of the seed; default: a pod's own.")
@click.option("--token-file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Token of its ServiceAccount, in place of the kubeconfig's credentials.")  # fmt: skip
@click.option("--namespace", default=f"extension-{NAME}", show_default=True, help="Of its own, in the seed.")
def main(kubeconfig: str | None, token_file: Path | None, namespace: str) -> None:
    """Run the example extension beside a seed."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(run(kubeconfig, namespace, token_file))


if __name__ == "__main__":
    main()
