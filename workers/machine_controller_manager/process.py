"""The machine controller manager process: three controllers over the seed, the shoot and the cloud."""

import logging

from activities.provider_local.cloud import Clouds
from kube.cache import Caches
from kube.client import KubeClient
from workers.lib.runtime import Health, load_config, run_until_signal
from workers.machine_controller_manager.config import MachineControllerManagerConfig
from workers.machine_controller_manager.driver import Driver
from workers.machine_controller_manager.machine import MachineController
from workers.machine_controller_manager.machine_deployment import MachineDeploymentController
from workers.machine_controller_manager.machine_set import MachineSetController

_log = logging.getLogger(__name__)


async def run(config_path: str) -> None:
    """Run until SIGTERM. The process keeps no state in memory that another process could not find again."""
    config = load_config(MachineControllerManagerConfig, config_path)
    kubeconfig = config.seed_kubeconfig
    seed = KubeClient.from_kubeconfig(kubeconfig) if kubeconfig else KubeClient.in_cluster()
    shoot = KubeClient.from_kubeconfig(config.shoot_kubeconfig)
    seed_caches, shoot_caches, clouds = Caches(seed), Caches(shoot), Clouds()
    driver = Driver(seed, clouds, config.namespace)
    health = Health()
    runner = await health.serve(config.health)
    health.ready = True
    _log.info("looking after the machines of %s", config.namespace)
    try:
        await run_until_signal(
            MachineDeploymentController(seed, seed_caches, config.namespace).run(),
            MachineSetController(seed, seed_caches, config.namespace).run(),
            MachineController(seed, seed_caches, shoot, shoot_caches, driver, config).run(),
        )
    finally:
        await runner.cleanup()
        await clouds.close()
        await seed_caches.close()
        await shoot_caches.close()
        await seed.close()
        await shoot.close()
