"""shoot-oidc-service: the extension by which a Shoot accepts tokens of issuers in its OpenIDConnect objects (GEP-12).

In each control plane that asks for it, the extension deploys an authenticator, which the API server asks about bearer
tokens that it does not know itself.
"""


async def run(config_path: str) -> None:
    """Run until a signal arrives; see ``workers.extension.process.ExtensionConfig``."""
    from workers.extension.process import run_extension
    from workers.oidc_service.actuator import OidcServiceActuator
    from workers.oidc_service.manifests import TYPE

    await run_extension(config_path, TYPE, lambda seed, caches: [OidcServiceActuator(seed, caches)])
