"""runtime-gvisor: the extension by which pods of a Shoot run in gVisor (GEP-10).

Its chart has a MutatingAdmissionPolicy for OperatingSystemConfigs of pools that ask for gVisor. The policy adds the
programs of gVisor and containerd's configuration, which the node agents then apply. The process of this package
reconciles the ContainerRuntimes: it gives the Shoot a RuntimeClass.
"""


async def run(config_path: str) -> None:
    """Run until a signal arrives; see ``workers.extension.process.ExtensionConfig``."""
    from workers.extension.process import run_extension
    from workers.gvisor.actuator import NAME, GvisorActuator

    await run_extension(config_path, NAME, lambda seed, caches: [GvisorActuator(seed, caches)])
