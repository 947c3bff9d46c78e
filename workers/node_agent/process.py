"""The node agent process."""

import asyncio
import socket

from workers.lib.runtime import Health, load_config, run_until_signal
from workers.node_agent.agent import NodeAgent
from workers.node_agent.config import NodeAgentConfig
from workers.node_agent.identity import Identity
from workers.node_agent.system import System


async def run(config_path: str) -> None:
    """Get a certificate, then apply the pool's Secret, and each change of it, until SIGTERM."""
    config = load_config(NodeAgentConfig, config_path)
    health = Health()
    runner = await health.serve(config.health)

    async def work() -> None:
        identity = Identity(config.server, config.ca_file, config.state_directory)
        client = await identity.client()
        name, system = socket.gethostname().lower(), System()

        async def renew() -> None:
            await identity.renew(client)
            await identity.renew_kubelet(system, name)

        agent = NodeAgent(client, config, name, system, renew=renew)
        health.ready = True
        try:
            async with asyncio.TaskGroup() as tasks:
                for part in (agent.run(), agent.keep_lease(), identity.keep_fresh(client)):
                    tasks.create_task(part)
        finally:
            await client.close()

    try:
        await run_until_signal(work())
    finally:
        await runner.cleanup()
