"""The machine controller manager process: three controllers over the seed and the shoot, and the drivers of clouds."""

import logging

from kube.cache import Caches
from kube.client import KubeClient
from workers.lib.runtime import Health, load_config, run_until_signal
from workers.machine_controller_manager.config import MachineControllerManagerConfig
from workers.machine_controller_manager.driver import Driver
from workers.machine_controller_manager.machine import MachineController
from workers.machine_controller_manager.machine_deployment import MachineDeploymentController
from workers.machine_controller_manager.machine_set import MachineSetController
from workers.provider_local.driver import LocalDriver

_log = logging.getLogger(__name__)


async def run(config_path: str) -> None:
    """Run until SIGTERM. The process keeps no state in memory that another process could not find again."""
    config = load_config(MachineControllerManagerConfig, config_path)
    kubeconfig = config.seed_kubeconfig
    seed = KubeClient.from_kubeconfig(kubeconfig) if kubeconfig else KubeClient.in_cluster()
    shoot = KubeClient.from_kubeconfig(config.shoot_kubeconfig)
    seed_caches, shoot_caches = Caches(seed), Caches(shoot)
    drivers: list[Driver] = [LocalDriver()]
    health = Health()
    runner = await health.serve(config.health)
    health.ready = True
    _log.info("managing the machines of %s", config.namespace)
    try:
        await run_until_signal(
            MachineDeploymentController(seed, seed_caches, shoot, shoot_caches, config.namespace).run(),
            MachineSetController(seed, seed_caches, config.namespace).run(),
            MachineController(seed, seed_caches, shoot, shoot_caches, drivers, config).run(),
        )
    finally:
        await runner.cleanup()
        for driver in drivers:
            await driver.close()
        await seed_caches.close()
        await shoot_caches.close()
        await seed.close()
        await shoot.close()
