"""Helm charts as their authors publish them, made in memory, and what those of this project render."""

import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

import helm_python as helm
import yaml

CHART = "{apiVersion: v2, name: notes, version: 1.0.0}"


def archive(files: dict[str, str], name: str = "notes") -> bytes:
    """A compressed archive of a chart. ``files``: texts by their paths in the chart; ``Chart.yaml`` is added.

    The same files always give the same bytes, and so the same digest.
    """
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as made,
    ):
        for path, text in {"Chart.yaml": CHART, **files}.items():
            info = tarfile.TarInfo(f"{name}/{path}")
            info.size = len(text.encode())
            made.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


def rights_of_provider_local(namespace: str) -> list[dict[str, Any]]:
    """Roles and bindings of provider-local's chart, for a release in ``namespace``."""
    with helm.Chart.load(Path(__file__).parents[2] / "charts/provider-local") as chart:
        files = chart.render({"seedName": "a", "loadBalancerIp": "192.0.2.1"}, name="a", namespace=namespace)
    return [each for each in yaml.safe_load_all(files["provider-local/templates/rbac.yaml"]) if each]
