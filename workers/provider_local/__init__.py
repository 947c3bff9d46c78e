"""provider-local: the infrastructure provider of the landscape, seen only through the extension API."""


async def run(config_path: str) -> None:
    """Run until a signal arrives; see ``config.ProviderLocalConfig``."""
    from workers.provider_local.process import run

    await run(config_path)
