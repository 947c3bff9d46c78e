"""Generates ``api/kubernetes_versions/v1_*.py`` from Kubernetes' own sources.

To generate them: ``python -m landscape.kubernetes_tables``.

The sources are Go modules, which the Go command downloads and verifies. Nothing of them is compiled: feature gates and
admission plugins are tables in the sources, and the API groups are discovery documents beside them.
"""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from landscape.binaries import KUBERNETES_VERSION, OLDER_KUBERNETES_VERSION

TABLES = Path(__file__).parents[1] / "api" / "kubernetes_versions"
VERSIONS = ("1.33.1", "1.34.1", "1.35.4", OLDER_KUBERNETES_VERSION, KUBERNETES_VERSION)
"""One patch version of each minor version: patches add no feature gates, admission plugins and API groups."""

_FEATURES = {
    "kubernetes": "pkg/features/kube_features.go",
    "apiserver": "pkg/features/kube_features.go",
    "apiextensions-apiserver": "pkg/features/kube_features.go",
    "client-go": "features/known_features.go",
    "component-base/logs": "logs/api/v1/kube_features.go",
    "component-base/metrics": "metrics/features/kube_features.go",
    "component-base/zpages": "zpages/features/kube_features.go",
    "controller-manager": "pkg/features/kube_features.go",
}
"""Files with feature gates. kube-apiserver, kubelet and the others share one set of gates, except the last file's."""
_CONTROLLER_MANAGER = "controller-manager"

_SPEC = re.compile(
    r"\{Version:\s*version\.(?:MustParse\(\"(?P<version>[\d.]+)\"\)|MajorMinor\((?P<major>\d+),\s*(?P<minor>\d+)\)),"
    r"(?P<rest>[^}]*)\}"
)
_ENTRY = re.compile(r"^\t{1,2}(?P<name>[\w.]+):\s*\{(?P<specs>\s*\n.*?^\t{1,2}|\{Version[^\n]*)\},?$", re.M | re.S)
_CONSTANT = re.compile(
    r"^\s+(\w+)(?:\s+(?:featuregate\.)?Feature)?\s*=\s*(?:featuregate\.Feature\()?\"(\w+)\"\)?\s*$", re.M
)
_DEPENDENCY = re.compile(r"^\t([\w.]+):\s*\{([^}]+)\},", re.M)
_IMPORT = re.compile(r"^\t(?:(\w+) )?\"(k8s\.io/[\w./-]+)\"$", re.M)

Gates = dict[str, tuple[str, bool, bool]]


class MissingSources(Exception):
    """The sources of a version are not on this machine."""


class Sources:
    """Sources of one version of Kubernetes, in the cache of Go modules."""

    def __init__(self, version: str, *, download: bool) -> None:
        self.version = version
        self.minor = int(version.split(".")[1])
        self._modules = {
            name: f"k8s.io/{name}@v{version if name == 'kubernetes' else f'0.{version[2:]}'}"
            for name in {each.partition("/")[0] for each in _FEATURES}
        }
        if download:
            subprocess.run(["go", "mod", "download", *self._modules.values()], check=True, cwd="/")
        self._cache = Path(
            subprocess.run(["go", "env", "GOMODCACHE"], check=True, capture_output=True, text=True).stdout.strip()
        )
        for module in self._modules.values():
            if not (self._cache / module).is_dir():
                raise MissingSources(module)

    def path(self, module: str, path: str = "") -> Path:
        return self._cache / self._modules[module] / path

    def file_of_import(self, package: str) -> Path:
        """Directory of an imported package, like ``k8s.io/apiserver/pkg/admission``."""
        module, _, path = package.removeprefix("k8s.io/").partition("/")
        return self.path(module, path)


def feature_gates(sources: Sources, *, of: str) -> Gates:
    """Stage, default, and whether the gate is locked, by name; ``of``: a key of ``_FEATURES``."""
    file = sources.path(of.partition("/")[0], _FEATURES[of])
    if not file.exists():
        return {}
    text = file.read_text()
    names = dict(_CONSTANT.findall(text))
    imported = _imported_names(sources, text)
    gates: Gates = {}
    for entry in _ENTRY.finditer(text):
        symbol = entry["name"]
        if not (spec := _spec_at(entry["specs"], sources.minor)):
            continue
        gates[names.get(symbol) or imported[symbol]] = spec
    return gates


def dependencies(sources: Sources) -> dict[str, list[str]]:
    """Gates that must be enabled, too, by the gate that depends on them."""
    text = sources.path("kubernetes", _FEATURES["kubernetes"]).read_text()
    _, _, table = text.partition("defaultKubernetesFeatureGateDependencies = ")
    names = dict(_CONSTANT.findall(text)) | _imported_names(sources, text)
    found: dict[str, list[str]] = {}
    for symbol, wanted in _DEPENDENCY.findall(table):
        symbols = [
            each.removeprefix("featuregate.Feature(").rstrip(")") for each in re.split(r"[,\s]+", wanted) if each
        ]
        found[names[symbol]] = sorted({names[each] for each in symbols})
    return found


def _imported_names(sources: Sources, text: str) -> dict[str, str]:
    """Names of the feature gates that a file imports, as ``alias.Symbol``."""
    found = {}
    for alias, package in _IMPORT.findall(text):
        if not package.endswith("features") or package.partition("/")[2].partition("/")[0] not in {
            each.partition("/")[0] for each in _FEATURES
        }:
            continue
        for file in sources.file_of_import(package).glob("*.go"):
            for symbol, name in _CONSTANT.findall(file.read_text()):
                found[f"{alias or package.rpartition('/')[2]}.{symbol}"] = name
    return found


def _spec_at(text: str, minor: int) -> tuple[str, bool, bool] | None:
    """The last specification whose version is not newer than the minor version; None if there is none."""
    found = None
    for spec in _SPEC.finditer(text):
        since = spec["minor"] or spec["version"].split(".")[1]
        if int(since) > minor:
            continue
        compatible = re.search(r"MinCompatibilityVersion:[^\"]*\"1\.(\d+)\"", spec["rest"])
        # A component is compatible with the minor version before its own, unless a flag says otherwise.
        if compatible and int(compatible[1]) > minor - 1:
            continue
        stage = re.search(r"PreRelease:\s*(?:featuregate\.)?(\w+)", spec["rest"])
        if stage is None:
            raise ValueError(f"a feature gate without PreRelease: {spec[0]}")
        default, locked = (re.search(rf"\b{name}:\s*true", spec["rest"]) for name in ("Default", "LockToDefault"))
        found = (stage[1], bool(default), bool(locked))
    return found


def admission_plugins(sources: Sources) -> list[str]:
    text = sources.path("kubernetes", "pkg/kubeapiserver/options/plugins.go").read_text()
    packages = {alias or path.rpartition("/")[2]: path for alias, path in _IMPORT.findall(text)}
    table = text.partition("AllOrderedPlugins = []string{")[2].partition("\n}")[0]
    return sorted(
        _plugin_name(sources, packages[package], symbol)
        for package, symbol in re.findall(r"^\t(\w+)\.(\w+),", table, re.M)
    )


def _plugin_name(sources: Sources, package: str, symbol: str) -> str:
    for file in sources.file_of_import(package).glob("*.go"):
        if found := re.search(rf"\b{symbol}\s*(?:string\s*)?=\s*\"(\w+)\"", file.read_text()):
            return found[1]
    raise ValueError(f"{package} does not declare {symbol}")


def api_versions(sources: Sources) -> dict[str, list[str]]:
    """Plural names of the resources of each group version, for example of ``apps/v1``."""
    found: dict[str, list[str]] = {}
    for file in sources.path("kubernetes", "api/discovery").glob("api*__*.json"):
        document = json.loads(file.read_text())
        if document["kind"] == "APIResourceList":
            plurals = {each["name"].partition("/")[0] for each in document["resources"]}
            found[document["groupVersion"]] = sorted(plurals)
    return dict(sorted(found.items()))


def table(sources: Sources) -> str:
    """Python source of the table of one version."""
    gates: Gates = {}
    for module in _FEATURES:
        if module != _CONTROLLER_MANAGER:
            gates |= feature_gates(sources, of=module)
    parts: dict[str, Mapping[str, object] | list[str]] = {
        "FEATURE_GATES": gates,
        "CONTROLLER_MANAGER_FEATURE_GATES": feature_gates(sources, of=_CONTROLLER_MANAGER),
        "DEPENDENCIES": dependencies(sources),
        "ADMISSION_PLUGINS": admission_plugins(sources),
        "API_VERSIONS": api_versions(sources),
    }
    types = {
        "FEATURE_GATES": "dict[str, Gate]",
        "CONTROLLER_MANAGER_FEATURE_GATES": "dict[str, Gate]",
        "DEPENDENCIES": "dict[str, tuple[str, ...]]",
        "ADMISSION_PLUGINS": "frozenset[str]",
        "API_VERSIONS": "dict[str, frozenset[str]]",
    }
    lines = [
        f'"""Kubernetes {sources.version}. Generated by ``python -m landscape.kubernetes_tables``: do not edit."""',
        "",
        "# fmt: off",
        "# ruff: noqa: E501",
        "from api.kubernetes_versions.gate import Gate",
        "",
    ]
    for name, content in parts.items():
        lines += [f"{name}: {types[name]} = {_opening(types[name])}", *_entries(content), _closing(types[name])]
    return "\n".join(lines) + "\n"


def _opening(kind: str) -> str:
    return "frozenset({" if kind.startswith("frozenset") else "{"


def _closing(kind: str) -> str:
    return "})" if kind.startswith("frozenset") else "}"


def _entries(content: Mapping[str, object] | list[str]) -> Iterator[str]:
    if isinstance(content, list):
        yield from (f"    {json.dumps(each)}," for each in content)
        return
    for name, value in sorted(content.items()):
        match value:
            case (str(stage), bool(default), bool(locked)):
                text = f"Gate({json.dumps(stage)}, {default}, {locked})"
            case [*names] if "/" in name or name == "v1":
                text = f"frozenset({{{', '.join(map(json.dumps, names))}}})"
            case [*names]:
                text = f"({', '.join(map(json.dumps, names))},)"
            case _:
                raise TypeError(f"{name}: {value}")
        yield f"    {json.dumps(name)}: {text},"


def file_name(version: str) -> str:
    return f"v{'_'.join(version.split('.')[:2])}.py"


def main() -> None:
    for version in VERSIONS:
        (TABLES / file_name(version)).write_text(table(Sources(version, download=True)))


if __name__ == "__main__":
    main()
