"""The node agent: runs on each machine, and applies the operating system config of its pool."""


async def run(config_path: str) -> None:
    """Run until a signal arrives; see ``config.NodeAgentConfig``."""
    from workers.node_agent.process import run

    await run(config_path)
