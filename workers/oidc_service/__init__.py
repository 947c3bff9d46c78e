"""shoot-oidc-service: the extension by which a Shoot accepts tokens of issuers in its OpenIDConnect objects (GEP-12).

In each control plane that asks for it, the extension deploys an authenticator, which the API server asks about bearer
tokens that it does not know itself.
"""


async def run(config_path: str) -> None:
    """Run until a signal arrives; see ``process.OidcServiceConfig``."""
    from workers.oidc_service.process import run

    await run(config_path)
