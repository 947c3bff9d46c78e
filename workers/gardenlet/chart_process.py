"""Pulls and renders one Helm chart by Helm's own engine, in a process of its own, which ``charts`` starts.

Charts come from authors of extensions. A template may run for ever or use all memory, and Helm's engine can be stopped
only with its process. The library of that engine also has 85 MB, which a gardenlet needs for seconds.

Input and output are JSON on the standard streams, so that no value is in a command line. The home directory is for this
process alone.
"""

import base64
import json
import re
import resource
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

_CPU_SECONDS = 60
_SEPARATOR = re.compile(r"^---\s*$", re.MULTILINE)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}$")


class Unusable(Exception):
    """Reason of the condition, and the message of Helm's engine."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def main() -> None:
    """Read the request from stdin, write the answer to stdout."""
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    request = json.load(sys.stdin)
    try:
        answer: dict[str, Any] = answered(request)
    except Unusable as error:
        answer = {"reason": error.reason, "message": str(error)}
    json.dump(answer, sys.stdout)


def answered(request: dict[str, Any]) -> dict[str, Any]:
    """Objects of the chart's templates, and its CustomResourceDefinitions. Raises Unusable."""
    import helm_python as helm

    archive = base64.b64decode(request["chart"]) if request.get("chart") else _pulled(request, Path.home())
    try:
        with helm.Chart.load_archive(archive) as chart:
            values = _with_resources(request["values"], request.get("resources") or {})
            made = chart.render(values, name=request["release"], namespace=request["namespace"])
            definitions = [each["data"] for each in chart.crds]
    except (helm.HelmChartLoadError, helm.HelmChartInvalidError, helm.HelmInvalidArgError) as error:
        raise Unusable("ChartInformationInvalid", f"the chart cannot be read: {error}") from None
    except helm.HelmError as error:
        raise Unusable("ChartCannotBeRendered", str(error)) from None
    texts = [made[path] for path in sorted(made) if not _is_partial(path)]
    return {"objects": list(_objects(texts)), "definitions": list(_objects(definitions))}


def _objects(texts: list[str]) -> Iterator[dict[str, Any]]:
    """The objects in texts of YAML, read as Kubernetes reads them. Raises Unusable."""
    import helm_python as helm

    for text in texts:
        for document in _SEPARATOR.split(text):
            try:
                found = helm.values_from_yaml(document)
            except helm.HelmError:
                # The error's text quotes the document, which may contain a Secret.
                raise Unusable("ChartCannotBeRendered", "a template of the chart makes no valid YAML") from None
            if not found:
                continue
            items = found.get("items") or [] if found.get("kind") == "List" else [found]
            for each in items:
                if not (each.get("apiVersion") and each.get("kind") and (each.get("metadata") or {}).get("name")):
                    raise Unusable(
                        "ChartCannotBeRendered", "a template makes something without apiVersion, kind or metadata.name"
                    )
                yield each


def _is_partial(path: str) -> bool:
    """Whether a template makes no objects: notes for people, and files of definitions."""
    name = path.rpartition("/")[2]
    return name == "NOTES.txt" or name.startswith("_")


def _pulled(request: dict[str, Any], directory: Path) -> bytes:
    """Archive of a chart in a registry. If the reference has a digest, the content has it, too. Raises Unusable."""
    import helm_python as helm

    reference = request["reference"].removeprefix("oci://")
    credentials = directory / "config.json"
    credentials.write_text(request.get("credentials") or "{}")
    target = directory / "pulled"
    target.mkdir()
    try:
        with helm.RegistryClient(credentials_file=credentials) as client:
            client.pull(f"oci://{reference}", destination=target)
            wanted = _DIGEST.search(reference)
            if wanted and (found := client.resolve(f"oci://{reference}")["digest"]) != wanted[0]:
                raise Unusable("OCIChartCannotBePulled", f"{reference} has digest {found}")
    except helm.HelmError as error:
        raise Unusable("OCIChartCannotBePulled", f"pulling {reference}: {error}") from None
    [archive] = target.glob("*.tgz")
    return archive.read_bytes()


def _with_resources(value: Any, resources: dict[str, Any]) -> Any:
    """The values, with the templates ``{{ .resources.<name>.data.<key> }}`` in them rendered. Raises HelmError."""
    texts = list(_templates(value))
    if not texts:
        return value
    import helm_python as helm

    files = {
        f"templates/{number}.txt": f"{{{{- with .Values -}}}}{text}{{{{- end -}}}}" for number, text in enumerate(texts)
    }
    files["Chart.yaml"] = "{apiVersion: v2, name: values, version: 0.0.0}"
    with helm.Chart.load_archive(_archive(files)) as chart:
        made = chart.render({"resources": resources})
    found = {text: made[f"values/templates/{number}.txt"] for number, text in enumerate(texts)}
    return _replaced(value, found)


def _templates(value: Any) -> Iterator[str]:
    """Texts in the values that contain a template."""
    match value:
        case dict():
            for each in value.values():
                yield from _templates(each)
        case list():
            for each in value:
                yield from _templates(each)
        case str() if "{{" in value and ".resources." in value:
            yield value


def _replaced(value: Any, found: dict[str, str]) -> Any:
    match value:
        case dict():
            return {key: _replaced(each, found) for key, each in value.items()}
        case list():
            return [_replaced(each, found) for each in value]
        case str():
            return found.get(value, value)
    return value


def _archive(files: dict[str, str]) -> bytes:
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, text in files.items():
            info = tarfile.TarInfo(f"values/{path}")
            info.size = len(text.encode())
            archive.addfile(info, BytesIO(text.encode()))
    return buffer.getvalue()


if __name__ == "__main__":
    main()
