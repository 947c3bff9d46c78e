"""provider-local: the extension for the local cloud of a landscape. Other components use only its extension API."""


async def run(config_path: str) -> None:
    """Run until a signal arrives; see ``config.ProviderLocalConfig``."""
    from workers.provider_local.process import run

    await run(config_path)
