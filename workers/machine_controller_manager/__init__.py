"""Our machine controller manager: controls MachineDeployments, MachineSets and Machines of one control plane."""


async def run(config_path: str) -> None:
    """Run until a signal arrives; see ``config.MachineControllerManagerConfig``."""
    from workers.machine_controller_manager.process import run

    await run(config_path)
