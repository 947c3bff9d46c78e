"""The objects of a Helm chart, rendered by ``chart_process`` with a time limit."""

import asyncio
import base64
import binascii
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from api import resources
from api.constants import GARDEN_NAMESPACE
from api.resources import Object
from kube.client import KubeClient
from kube.errors import Forbidden

_PROGRAM = Path(__file__).with_name("chart_process.py")
"""A file and no module: a module would import its package, and so the whole gardenlet."""
_KEPT_ENVIRONMENT = ("PATH", "TMPDIR", "HTTPS_PROXY", "NO_PROXY")
_SYSTEM_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
_LIMIT_SECONDS = 60.0
_MESSAGE_CHARACTERS = 1000
"""Maximum length of a message in a condition."""
_SHORTEST_SECRET = 4


class ChartError(Exception):
    """The chart cannot be pulled or rendered. The text contains no value of a Secret."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        """Reason of condition Valid."""


@dataclass(frozen=True)
class Chart:
    """A chart, where it is, and what it is rendered with."""

    release: str
    namespace: str
    values: Mapping[str, Any]
    raw: str = ""
    """The compressed archive in base64; empty: the chart is in a registry."""
    reference: str = ""
    """Reference in a registry, with a tag, a digest or both."""
    credentials: str = field(default="", repr=False)
    """File of credentials for registries, as Docker writes it."""
    authorities: str = ""
    """Certificates that the registry's certificate may be signed by, beside those that the system trusts."""
    resources: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Objects that templates in the values name, by their names there."""

    @property
    def request(self) -> dict[str, Any]:
        return {
            "release": self.release,
            "namespace": self.namespace,
            "values": dict(self.values),
            "chart": self.raw,
            "reference": self.reference,
            "credentials": self.credentials,
            "resources": dict(self.resources),
        }


@dataclass(frozen=True)
class Rendered:
    objects: tuple[Object, ...]
    definitions: tuple[Object, ...]
    """CustomResourceDefinitions in the chart's directory ``crds``, which Helm installs first and never deletes."""


async def rendered(chart: Chart, limit: float = _LIMIT_SECONDS) -> Rendered:
    """Pull and render a chart. Raises ChartError."""
    with tempfile.TemporaryDirectory(prefix="chart-") as home:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # modules beside the program are no modules of it
            str(_PROGRAM),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,  # Helm's log may quote values
            env=_environment(chart, Path(home)),
        )
        try:
            async with asyncio.timeout(limit):
                output, _ = await process.communicate(json.dumps(chart.request).encode())
        except TimeoutError:
            raise ChartError("ChartCannotBeRendered", f"Helm did not end within {limit:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    try:
        answer = json.loads(output)
    except ValueError:
        raise ChartError(
            "ChartCannotBeRendered", f"Helm's process ended with status {process.returncode} and no result"
        ) from None
    if "reason" in answer:
        raise ChartError(answer["reason"], _without_secrets(answer["message"], chart))
    return Rendered(tuple(answer["objects"]), tuple(answer["definitions"]))


def reference_of(repository: Mapping[str, Any]) -> str:
    """Reference of a chart in a registry, with tag, digest or both; empty if there is no repository."""
    if ref := repository.get("ref"):
        return str(ref)
    if not repository:
        return ""
    tag, digest = (repository.get(each) for each in ("tag", "digest"))
    return "".join((repository["repository"], f":{tag}" if tag else "", f"@{digest}" if digest else ""))


async def secret_text(garden: KubeClient, reference: Mapping[str, Any] | None, key: str) -> str:
    """Content of a key of a Secret of namespace ``garden``; empty without a reference. Raises ChartError."""
    if not reference:
        return ""
    try:
        found = await garden.find(resources.SECRET, reference["name"], GARDEN_NAMESPACE)
    except Forbidden:
        found = None  # the authorizer refuses a Secret that does not exist, too
    content = ((found or {}).get("data") or {}).get(key)
    if content is None:
        raise ChartError("OCIChartCannotBePulled", f"Secret garden/{reference['name']} has no key {key}")
    return base64.b64decode(content).decode()


def _environment(chart: Chart, home: Path) -> dict[str, str]:
    """Environment of the process. Helm's engine reads it at its start, and keeps files in its home directory alone."""
    kept = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    if chart.authorities:
        # The engine reads authorities from one file. A registry may redirect to a store with a public certificate.
        known = _SYSTEM_AUTHORITIES.read_text() if _SYSTEM_AUTHORITIES.exists() else ""
        bundle = home / "authorities.crt"
        bundle.write_text(f"{known}\n{chart.authorities}")
        kept["SSL_CERT_FILE"] = str(bundle)
    homes = ("HOME", "HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME", "DOCKER_CONFIG")
    return {**kept, **dict.fromkeys(homes, str(home)), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _without_secrets(message: str, chart: Chart) -> str:
    """Helm's message without values of the objects that the chart's values name."""
    for each in sorted(set(_leaves(chart.resources)), key=len, reverse=True):
        if len(each) >= _SHORTEST_SECRET:
            message = message.replace(each, "…")
    return message if len(message) <= _MESSAGE_CHARACTERS else f"{message[:_MESSAGE_CHARACTERS]}…"


def _leaves(value: Any) -> Iterable[str]:
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _leaves(each)
    elif isinstance(value, str):
        yield value
        yield from filter(None, (_decoded(value),))


def _decoded(value: str) -> str:
    try:
        return base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""
