"""Helm charts as their authors publish them, made in memory."""

import io
import tarfile

CHART = "{apiVersion: v2, name: notes, version: 1.0.0}"


def archive(files: dict[str, str], name: str = "notes") -> bytes:
    """A compressed archive of a chart. ``files``: texts by their paths in the chart; ``Chart.yaml`` is added."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as made:
        for path, text in {"Chart.yaml": CHART, **files}.items():
            info = tarfile.TarInfo(f"{name}/{path}")
            info.size = len(text.encode())
            made.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()
