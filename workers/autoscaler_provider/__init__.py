"""Cloud provider of the cluster autoscaler: node groups are MachineDeployments, instances are Machines."""


async def run(config_path: str) -> None:
    """Run until a signal arrives; see ``config.AutoscalerProviderConfig``."""
    from workers.autoscaler_provider.process import run

    await run(config_path)
