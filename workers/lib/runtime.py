"""Common parts of all processes: configuration file, JSON logs, health, metrics and graceful stop."""

import asyncio
import contextvars
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import yaml
from aiohttp import web
from pydantic import ValidationError

from api.model import ApiModel
from kube import liveness
from kube.client import KubeClient

Config = TypeVar("Config", bound=ApiModel)

_GC_THRESHOLDS = 50_000, 20, 100
"""Python collects garbage more seldom than by default, which took a fifth of a controller-manager's CPU time beside
1,000 Shoots."""

log_context: contextvars.ContextVar[dict[str, str]] = contextvars.ContextVar("log_context")
"""Fields in each log line of the current task, for example shoot, workflow and task."""


class ConfigError(Exception):
    """A configuration file that cannot be used; the text names the file, the field and what is wrong."""


class ConfigurationChanged(Exception):
    """The configuration file has another, valid content: the process must start again."""


class ClientConnection(ApiModel):
    """How to reach one cluster."""

    kubeconfig: Path | None = None
    """None: the process runs in this cluster and uses its pod's service account."""


class HealthConfig(ApiModel):
    """Address of /healthz, /readyz and /metrics; port 0 picks a free port."""

    address: str = "127.0.0.1"
    port: int = 0


def kube_client(connection: ClientConnection) -> KubeClient:
    """A client for the cluster; the caller closes it."""
    return KubeClient.from_kubeconfig(connection.kubeconfig) if connection.kubeconfig else KubeClient.in_cluster()


def load_config(model: type[Config], path: str | Path) -> Config:
    """Read a YAML configuration file.

    Raises:
        ConfigError: the file is missing, is not YAML, or does not match ``model``. The text quotes no values: a
            configuration may hold secrets, and logs must not.
    """
    try:
        data = yaml.safe_load(Path(path).read_text())
        return model.model_validate(data or {})
    except OSError as error:
        raise ConfigError(f"reading configuration {path}: {error.strerror}") from None
    except yaml.YAMLError:
        raise ConfigError(f"reading configuration {path}: it is not YAML") from None
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors(include_input=False)
        )
        raise ConfigError(f"configuration {path} is not valid: {faults}") from None


class _JsonFormatter(logging.Formatter):
    def __init__(self, component: str) -> None:
        super().__init__()
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "component": self._component,
            "logger": record.name,
            "message": record.getMessage(),
            **log_context.get({}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure_logging(component: str, level: str = "INFO") -> None:
    """Log to stderr, one JSON object per line, with the fields of ``log_context``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter(component))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)


def adjust_logging(level: str, style: str) -> None:
    """Log with the level and the format of a configuration, once it has been read. ``style``: ``json`` or ``text``."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    if style == "text":
        for handler in root.handlers:
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))


class Health:
    """Health endpoints of one process: ready once ``ready`` is set, alive while caches and controllers work.

    If the event loop hangs, a probe gets no answer.
    """

    def __init__(self) -> None:
        self.ready = False

    async def serve(self, config: HealthConfig) -> web.AppRunner:
        """Start to listen. The caller must clean the runner up."""
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, config.address, config.port).start()
        return runner

    async def _healthz(self, _: web.Request) -> web.Response:
        fault = liveness.fault()
        return web.Response(status=500 if fault else 200, text=fault or "ok")

    async def _readyz(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.ready else 503, text="ok" if self.ready else "starting")

    async def _metrics(self, _: web.Request) -> web.Response:
        from prometheus_client import REGISTRY, generate_latest

        return web.Response(body=generate_latest(REGISTRY), headers={"Content-Type": "text/plain; version=0.0.4"})


async def run_until_signal(*parts: Coroutine[Any, Any, None]) -> None:
    """Run the parts concurrently until SIGTERM or SIGINT, then cancel them and wait until they have ended.

    If a part raises an error, it is raised here, and the process must exit: its supervisor restarts it.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    tasks = [asyncio.create_task(part) for part in parts]
    stopping = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
    for task in [*tasks, stopping]:
        task.cancel()
    await asyncio.gather(*tasks, stopping, return_exceptions=True)
    for task in done - {stopping}:
        if not task.cancelled() and (error := task.exception()):
            raise error


def start(component: str, run: Callable[[str], Awaitable[None]], config_path: str) -> None:
    """Body of ``gardener worker <component>``: set up logs, then run; exit code 2 if the configuration is invalid.

    If the configuration changes, the process executes the same command line again, with the same process id.
    """
    configure_logging(component)
    # A process of ours holds very many objects, and few in cycles.
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        asyncio.run(run(config_path))  # type: ignore[arg-type]
    except ConfigurationChanged as change:
        logging.getLogger(__name__).info("%s: starting again", change)
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    except ConfigError as error:
        logging.getLogger(__name__).error(str(error))
        raise SystemExit(2) from None
