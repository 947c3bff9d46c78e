"""Gardener's own provider-local: an extension of another project's making, with its chart and its program unchanged.

Values of its chart switch off the controllers and webhooks for which this project has an extension of its own. Two
Extension types are left: objects of one are deployed into the seed, those of the other into the Shoot.
"""

from pathlib import Path
from typing import Any

from landscape import binaries, extensions
from landscape.progress import Progress

PROGRAM = binaries.Tool(
    "gardener-extension-provider-local",
    "1.130.0",
    ("gardener-extension-provider-local",),
    Path(__file__).parent,
    "",
    package="github.com/gardener/gardener/cmd/gardener-extension-provider-local",
)
IMAGE = f"registry.invalid/gardener/extensions/provider-local:v{PROGRAM.version}"
IN_SEED, IN_SHOOT = "local-ext-seed", "local-ext-shoot"
VALUES: dict[str, Any] = {
    "image": IMAGE,
    "coredns": {"enabled": False},
    "vpa": {"enabled": False},
    "disableControllers": [
        "backupbucket", "backupentry_controller", "bastion", "controlplane", "dnsrecord", "infrastructure", "worker",
        "ingress", "service", "healthcheck", "operatingsystemconfig", "local-ext-shoot-after-worker", "networkpolicy",
    ],
    "disableWebhooks": ["*"],
}  # fmt: skip


async def built() -> Path:
    """The program. The first call compiles it."""
    return Path((await binaries.ensure((PROGRAM,), Progress()))[PROGRAM.name])


async def chart() -> bytes:
    """The archive of the chart as it is published."""
    files = await binaries.published_files(PROGRAM, "github.com/gardener/gardener", Progress())
    return extensions.packaged(files / "charts/gardener/provider-local")
