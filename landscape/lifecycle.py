"""Start a landscape, report its state, take it down."""

import asyncio
import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from landscape import (
    binaries,
    cgroups,
    cloud,
    cloud_controllers,
    containerd,
    disks,
    dns,
    extensions,
    front_door,
    garden,
    images,
    keeper,
    kernel,
    logins,
    managed_seeds,
    network,
    object_store,
    registry,
    residue,
    seed,
    temporal,
    workers,
)
from landscape import plan as plans
from landscape.cluster import Cluster
from landscape.errors import LandscapeError
from landscape.images import Role
from landscape.images.layers import runtime_distributions
from landscape.images.store import publish
from landscape.kube import apply, connected, is_ready
from landscape.plan import CACHE_HOME, STATE_HOME, ClusterPlan, NodePlan, Plan
from landscape.processes import Processes
from landscape.progress import Progress
from landscape.waiting import answers, until

_KERNEL_LIMITS = STATE_HOME / ".kernel-limits.json"
Making = asyncio.Task[dict[str, binaries.Binaries]]
"""Binaries by version of Kubernetes."""
Which = Literal["all", "seeds", "none"]
"""Processes of our own to start: of the garden and the seeds, of the seeds alone, or none."""

TOOLS: Mapping[Role, Callable[[str], tuple[binaries.Tool, ...]]] = {
    "cloud": binaries.machine_tools,
    "seed": binaries.seed_tools,
    "shoot": binaries.image_tools,
}
"""Binaries for the images of a role; they are made in this order."""


def processes_of(plan: Plan) -> Processes:
    return Processes(plan.directory / "processes", plan.logs)


def require(name: str) -> Plan:
    """Plan of an existing landscape."""
    plan = plans.load(name)
    if plan is None:
        raise LandscapeError(f"there is no landscape {name!r}: run `gardener landscape up --name {name}`")
    return plan


async def prepare(progress: Progress) -> None:
    """Make what all landscapes share: binaries, and Debian trees. It can be repeated, and run beside an ``up``."""
    _require_root()
    runtime_distributions()  # before any thread
    trees = asyncio.create_task(asyncio.to_thread(images.prepare, progress.say))
    await binaries.ensure((*binaries.cluster_tools(), *binaries.central_tools(), *binaries.image_tools()), progress)
    await trees


async def up(
    name: str,
    progress: Progress,
    older_versions: Sequence[str] = (),
    which_workers: Which = "all",
    external_temporal: str = "",
    authentication: str = "",
    zonal: Sequence[str] = (),
    open_seeds: bool = False,
) -> Plan:
    """Start all parts of the landscape that do not run; safe to repeat, also after an ``up`` that was interrupted.

    ``older_versions``: further versions of Kubernetes that shoots may have from now on. ``external_temporal``: address
    of an external Temporal; kept until the landscape is taken down. ``authentication``: content of an
    AuthenticationConfiguration with the issuers that the garden trusts; kept until the next one. ``zonal``: seeds of a
    new landscape that get a node in each zone. ``open_seeds``: no NetworkPolicies close the seeds of a new landscape.
    They are open, too, if a seed is zonal.
    """
    _require_root()
    with _locked(name, progress):
        plan = plans.load(name) or plans.choose(name, binaries.KUBERNETES_VERSION, zonal=zonal, open_seeds=open_seeds)
        if open_seeds and plan.closed:
            raise LandscapeError(f"the seeds of landscape {name} are closed, and cannot be opened: take it down first")
        if missing := set(zonal) - set(plan.zonal):
            raise LandscapeError(
                f"the nodes of {', '.join(sorted(missing))} cannot change: take landscape {name} down first"
            )
        plan = replace(plan, older_versions=tuple(dict.fromkeys((*plan.older_versions, *older_versions))))
        plan = replace(plan, external_temporal=external_temporal or plan.external_temporal)
        for version in plan.older_versions:
            binaries.kubernetes(version)  # refuse before any process is started
        if authentication:
            logins.trust(plan, authentication)
        plan.save()
        for node in (node for cluster in plan.clusters for node in cluster.nodes):
            cgroups.create(node.cgroup)  # also the nodes of an earlier version, before this one needs the CPUs
        runtime_distributions()  # before any thread
        # Make Debian trees while the first ``up`` compiles: debootstrap mostly waits for dpkg.
        trees = asyncio.create_task(asyncio.to_thread(images.prepare, progress.say))
        tools = (*binaries.cluster_tools(plan.kubernetes_version), *binaries.central_tools())
        found = await binaries.ensure(tools, progress)
        await kernel.load_modules()
        kernel.raise_limits(_KERNEL_LIMITS)
        await network.up(plan)
        progress.say(f"network of landscape {name} at {plan.block}")
        await _Up(plan, found, trees, progress, which_workers).run()
    return plan


class _Up:
    """One run of ``up``, with as many steps in parallel as possible."""

    def __init__(
        self,
        plan: Plan,
        found: binaries.Binaries,
        trees: asyncio.Task[None],
        progress: Progress,
        which_workers: Which,
    ) -> None:
        self._plan = plan
        self._workers = which_workers
        self._binaries = found
        self._trees = trees
        self._making_images = asyncio.Lock()
        self._progress = progress
        self._processes = processes_of(plan)
        self._cloud_serves = asyncio.Event()
        self._garden_serves = asyncio.Event()
        self._temporal_serves = asyncio.Event()
        self._archives: dict[Role, asyncio.Task[list[Path]]] = {}

    async def run(self) -> None:
        self._processes.start(keeper.process(self._plan.directory / "processes", self._plan.logs))
        # A failure cancels the other steps; processes that were started stay for the next ``up``, or for ``down``.
        try:
            async with asyncio.TaskGroup() as group:
                made: Making | None = None
                for role in TOOLS:
                    made = group.create_task(self._image_binaries(role, made))
                    self._archives[role] = group.create_task(self._made_archives(role, made))
                group.create_task(self._machine_images())
                group.create_task(self._temporal())
                group.create_task(self._object_store())
                group.create_task(self._registry())
                group.create_task(self._dns())
                group.create_task(self._garden())
                group.create_task(self._cluster(self._plan.cloud))
                for each in self._plan.seeds:
                    group.create_task(self._cluster(each))
        except* LandscapeError as errors:
            first, *_ = _leaves(errors)
            raise first from None

    async def _temporal(self) -> None:
        specs = temporal.processes(self._plan)
        gateway = self._processes.find(temporal.GATEWAY)
        if gateway is not None and temporal.GATEWAY not in [spec.name for spec in specs]:
            self._processes.stop([gateway])  # before the relay to an external Temporal listens at its address
        for spec in specs:
            self._processes.start(spec)
        external = self._plan.external_temporal
        where = f"which is {external}" if external else f"its UI at {self._plan.temporal_ui}"
        with self._progress.step(f"Temporal serves at {self._plan.temporal_address}, {where}"):
            await temporal.ready(self._plan)
        self._temporal_serves.set()

    async def _dns(self) -> None:
        self._processes.start(dns.process(self._plan))
        with self._progress.step(f"DNS serves {self._plan.dns_zone}"):
            await dns.ready(self._plan)

    async def _garden(self) -> None:
        cluster = Cluster(self._plan, self._plan.garden, self._binaries, self._processes)
        started = self._workers == "all"
        with self._progress.step(f"garden: API server at {self._plan.garden.server}"):
            asking = workers.asking_admission(self._plan) if started else {}
            await cluster.start_control_plane(
                {**logins.api_server_flags(self._plan), **asking}, front_door.processes(self._plan)
            )
        with self._progress.step("garden: logins"):
            await until(partial(logins.are_trusted, self._plan), "the configuration of logins (see its log)", 60)
        with self._progress.step("garden: kinds"):
            await garden.deploy_kinds(self._plan, unrestricted_gardenlets=not started)
        await self._temporal_serves.wait()
        ours = workers.of_garden(self._plan)
        await self._start_ours([each for each in ours if started or each.spec.name in workers.OF_THE_LANDSCAPE])
        with self._progress.step("garden: cloud profile, project and credentials"):
            await self._cloud_serves.wait()
            account = await garden.cloud_account(self._plan)
            await garden.deploy(self._plan, account, admission=self._workers != "none")
        if self._workers != "none":
            self._processes.start(managed_seeds.process(self._plan))
        self._garden_serves.set()

    async def _start_ours(self, processes: Sequence[workers.Ours]) -> None:
        """Start processes of this project in parallel, and wait until they are ready."""
        await asyncio.gather(*(self._start_one_of_ours(process) for process in processes))

    async def _start_one_of_ours(self, process: workers.Ours) -> None:
        name = process.spec.name
        with self._progress.step(f"{name} ready"):
            await asyncio.to_thread(self._processes.start, process.spec)
            await until(lambda: answers(process.ready_url), name, 120, lambda: self._processes.hopeless(name))

    async def _object_store(self) -> None:
        workers.write_codec_keys(self._plan)
        await object_store.end_earlier(self._plan, self._processes)
        with self._progress.step(f"object store serves at {self._plan.object_store_endpoint}"):
            for spec in object_store.processes(self._plan, self._binaries["versitygw"]):
                await asyncio.to_thread(self._processes.start, spec)
            await object_store.ready(self._plan, self._processes.hopeless)

    async def _registry(self) -> None:
        with self._progress.step(f"registry serves at {self._plan.registry_endpoint}"):
            self._processes.start(registry.process(self._plan, self._binaries["registry"]))
            await registry.ready(self._plan, self._processes.hopeless)

    async def _machine_images(self) -> None:
        """Publish the images that every machine of the cloud has from its start."""
        with self._progress.step("cloud: images for machines"):
            await publish(self._plan.machine_images, await self._archives["shoot"])

    async def _cluster(self, cluster_plan: ClusterPlan) -> None:
        cluster = Cluster(self._plan, cluster_plan, self._binaries, self._processes)
        role: Role = "seed" if cluster_plan.is_seed else "cloud"
        with self._progress.step(f"{cluster_plan.name}: API server at {cluster_plan.server}"):
            await cluster.start_control_plane(cloud.trust(self._plan) if role == "cloud" else None)
        if cluster_plan.name == "cloud":
            self._cloud_serves.set()
            await disks.share(self._plan)
            self._processes.start(cloud_controllers.process(self._plan))
        with self._progress.step(f"{cluster_plan.name}: node ready"):
            await asyncio.gather(*(self._node(cluster, node, role) for node in cluster_plan.nodes))
            if cluster_plan.is_zonal:
                cluster.start_load_balancer()
        if cluster_plan.is_seed:
            cluster.start_gateway_ipv6()
            with self._progress.step(f"{cluster_plan.name}: DNS and storage"):
                await seed.deploy(self._plan, cluster_plan, self._processes)
            await asyncio.gather(self._garden_serves.wait(), self._temporal_serves.wait())
            ours = workers.of_seed(self._plan, cluster_plan)
            if self._workers == "none":
                return
            await extensions.end_earlier(self._plan, cluster_plan, self._processes)
            await self._start_ours(ours)
            await self._extensions(cluster_plan)
            with self._progress.step(f"{cluster_plan.name}: Seed ready"):
                await until(lambda: garden.seed_ready(self._plan, cluster_plan.name), f"Seed {cluster_plan.name}", 180)

    async def _extensions(self, seed: ClusterPlan) -> None:
        with self._progress.step(f"{seed.name}: extension {extensions.PROVIDER_LOCAL} installed"):
            await extensions.install(self._plan, seed)

    async def _node(self, cluster: Cluster, node: NodePlan, role: Role) -> None:
        """Start a node, whose containerd has all images; a root that exists gets the changed images."""
        for directory in (node.directory, node.run_directory):
            directory.mkdir(parents=True, exist_ok=True)
        root = node.directory / "containerd"
        if fresh := not root.exists():
            await containerd.copy(await self._prepared_root(role), root)
        cluster.start_containerd(node)
        if not fresh:
            await containerd.ready(node.containerd_socket)
            if changed := await containerd.refresh(node, await self._archives[role]):
                self._progress.say(f"{node.name}: images imported: {', '.join(changed)}")
        if role == "seed" and self._plan.closed:
            await self._enforce_policies(node)
        await cluster.start_node(node)

    async def _enforce_policies(self, node: NodePlan) -> None:
        """Start the agent that the node's pods wait for."""
        if shutil.which("nft") is None:
            raise LandscapeError("nft is not installed: run `make packages`")
        seed = next(each for each in self._plan.seeds if node in each.nodes)
        async with connected(self._plan.kubeconfig(seed.name)) as client:
            await apply(client, *workers.rights_of_node_agents())
        await self._start_one_of_ours(workers.of_node(self._plan, seed, node))

    async def _image_binaries(self, role: Role, earlier: Making | None) -> dict[str, binaries.Binaries]:
        """Binaries for the images of a role; made after those of earlier roles, so that none is made twice."""
        if earlier is not None:
            await earlier
        # Machines contain the kubelet of one version, and download others.
        versions = self._plan.shoot_versions[:1] if role == "cloud" else self._plan.shoot_versions
        return {each: await binaries.ensure(TOOLS[role](each), self._progress) for each in versions}

    async def _made_archives(self, role: Role, made: Making) -> list[Path]:
        """Image archives for the nodes of clusters of this role; missing ones are made."""
        found: dict[Path, None] = {}
        await self._trees
        for version, version_binaries in (await made).items():
            make = partial(images.archives_for, role, version, version_binaries, self._progress.say)
            async with self._making_images:  # images share layers
                found |= dict.fromkeys(await asyncio.to_thread(make))
        return list(found)

    async def _prepared_root(self, role: Role) -> Path:
        root, changed = await containerd.prepare(role, await self._archives[role])
        if changed:
            self._progress.say(f"images for {role} clusters imported: {', '.join(changed)}")
        return root


async def engine_images(progress: Progress) -> Path:
    """The archive with the images of docker-compose.yaml."""
    _require_root()
    found = await binaries.ensure(binaries.engine_tools(), progress)
    return await asyncio.to_thread(images.archive_for_engine, found, progress.say)


async def down(name: str, progress: Progress) -> None:
    """Stop the landscape, and remove all but the caches."""
    _require_root()
    with _locked(name, progress):
        plan = plans.load(name)
        if plan is None:
            progress.say(f"there is no landscape {name}")
            return
        await _end_processes(plan, progress)
        await asyncio.to_thread(residue.remove_pods, plan)
        await network.down(plan)
        progress.say("pods, mounts, control groups, links and network namespaces removed")
        await asyncio.to_thread(shutil.rmtree, plan.run_directory, True)
        await asyncio.to_thread(shutil.rmtree, plan.directory, False)
        if not list(plans.existing()):
            kernel.restore_limits(_KERNEL_LIMITS)
        for directory in (plan.run_directory.parent, STATE_HOME):
            with contextlib.suppress(OSError):
                directory.rmdir()  # only if it is empty
    progress.say(f"landscape {name} is down")


async def _end_processes(plan: Plan, progress: Progress) -> None:
    """Stop all processes, the keeper first: it would restart the others."""
    processes = processes_of(plan)
    running = list(processes.all())
    for part in (
        [each for each in running if each.spec.name == keeper.NAME],
        [each for each in running if each.spec.name != keeper.NAME],
    ):
        await asyncio.to_thread(processes.stop, part, 3.0)
    progress.say(f"{len(running)} processes ended")


async def status(plan: Plan) -> dict[str, Any]:
    """State of the landscape, for ``gardener landscape status``."""
    clusters = await asyncio.gather(*(_cluster_status(plan, cluster) for cluster in plan.clusters))
    processes = {
        running.spec.name: {
            "pid": running.pid,
            "state": ("Paused" if running.stopped else "Running") if running.alive else "Dead",
            "starts": running.starts,
            "log": str(processes_of(plan).log(running.spec.name)),
        }
        for running in processes_of(plan).all()
    }
    return {
        **plan.facts,
        "ready": all(cluster["ready"] for cluster in clusters)
        and all(process["state"] == "Running" for process in processes.values()),
        "clusters": {cluster.pop("name"): cluster for cluster in clusters},
        "processes": processes,
        "extensions": await extensions.state(plan),
    }


async def _cluster_status(plan: Plan, cluster: ClusterPlan) -> dict[str, Any]:
    kubeconfig = plan.kubeconfig(cluster.name)
    ready, cut = False, cluster.is_seed and network.is_cut(plan, cluster.name)
    if kubeconfig.exists() and not cut:
        async with connected(kubeconfig) as client:
            ready = await is_ready(client)
    return {
        "name": cluster.name,
        "kubeconfig": str(kubeconfig),
        "server": cluster.server,
        "ready": ready,
        **({"cut": cut} if cluster.is_seed else {}),
    }


def _leaves(group: BaseExceptionGroup[LandscapeError]) -> Iterator[LandscapeError]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _require_root() -> None:
    if os.geteuid() != 0:
        raise LandscapeError("a landscape makes network namespaces, mounts and control groups: run it as root")


@contextmanager
def _locked(name: str, progress: Progress) -> Iterator[None]:
    """One ``up`` or ``down`` of a landscape at a time."""
    CACHE_HOME.mkdir(parents=True, exist_ok=True)
    with (CACHE_HOME / f".{name}.lock").open("w") as lock:  # not in the landscape, which "down" removes
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say(f"waiting for another up or down of landscape {name}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
