"""Each write of a gardenlet in the garden passes the seed authorizer, and webhook /restrict-seeds knows its fields.

The code says which writes there are: all calls of a garden client that change something, and all functions that get
such a client, in all modules that a gardenlet imports. WRITES says what each of them asks the garden for. The garden of
tests (``tests.unit.kube.garden_server``) compares the bodies of these writes with the table of fields.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient

from api import resources
from tests.unit.admission.test_seed_authorizer import CORE, LEASES, OPERATIONS, REQUESTS, ask, authorizer
from workers.admission.seed_authorizer import RIGHTS
from workers.admission.seed_writes import OWNED, Owned

__all__ = ["authorizer"]

ROOT = Path(__file__).parents[3]
FOLDERS = ("activities/seed", "activities/shoot", "workers/gardenlet", "workers/etcd")
"""Code of gardenlets. The garden's activities are registered next to it, and run in no gardenlet."""
REGISTRY = Path("workers/lib/registry.py")
CLIENT = {"garden", "_garden"}
METHODS = {"create", "replace", "apply", "apply_blindly", "patch", "delete", "remove", "request"}
READERS = {
    "Caches",
    "access.follow",
    "cloud_credentials",
    "control_plane_of",
    "seed_credentials",
    "secret_text",
    "_project",
}
"""Functions that get the garden's client and only read; functions that name it ``garden`` are checked themselves."""

DEMO = "garden-local/shoot--local--demo--uid-demo"
SOURCE = "garden-local/source-shoot--local--mover--uid-mover"
GENERATED = "secrets garden/generated-bucket-uid-seed-1"
LEFT = "garden-local/source-shoot--local--left--uid-left"
SHOOT, SEED, STATE = f"shoots.{CORE}", f"seeds.{CORE}", f"shootstates.{CORE}"
BUCKET, ENTRY, BASTION = f"backupbuckets.{CORE}", f"backupentries.{CORE}", f"bastions.{OPERATIONS}"
IDENTITY = "workloadidentities.security.gardener.cloud"
INSTALLATION = f"controllerinstallations.{CORE}"
INTERNAL = f"internalsecrets.{CORE}"
MANAGED_SEED = "managedseeds.seedmanagement.gardener.cloud"
GARDENLET = "gardenlets.seedmanagement.gardener.cloud"
PUBLIC_KEYS = "secrets gardener-system-shoot-issuer/local--uid-demo"
SEED_STATUS = f"patch {SEED}/status /seed-1"
EVENT = ("create events default/seed-1.1", "patch events default/seed-1.1")
PUBLISHED = (
    "secrets garden-local/demo.ssh-keypair",
    "configmaps garden-local/demo.ca-cluster",
    f"{INTERNAL} garden-local/demo.ca-client",
)


def applied(*objects: str) -> tuple[str, ...]:
    """Server-side apply: what a client asks for, and what the API server asks for where the object is new."""
    return tuple(f"{verb} {each}" for each in objects for verb in ("get", "create", "patch"))


WRITES: dict[str, tuple[str, ...]] = {
    "activities.garden.seed_status.write_seed_status patch_as_read": (SEED_STATUS,),
    "activities.seed.backup_keys.publish_key apply": applied(f"{INTERNAL} garden-local/demo.etcd-backup"),
    "activities.seed.bootstrap.SeedActivities._report write_seed_status": (SEED_STATUS,),
    "activities.seed.bootstrap.SeedActivities.deploy_backup_bucket apply": applied(f"{BUCKET} /uid-seed-1"),
    "activities.seed.bootstrap.SeedActivities.report_seed_processing patch": (f"patch {SEED} /seed-1",),
    "activities.seed.extensions.ExtensionActivities.delete_backup_entry delete": (f"delete {ENTRY} {DEMO}",),
    "activities.seed.extensions.ExtensionActivities.delete_backup_entry patch": (f"patch {ENTRY} {DEMO}",),
    "activities.seed.extensions.ExtensionActivities.deploy_backup_entry apply": applied(f"{ENTRY} {DEMO}"),
    "activities.seed.extensions.ExtensionActivities.migrate_backup_entry patch": (
        f"patch {ENTRY} {DEMO}",
        f"patch {ENTRY}/status {DEMO}",
    ),
    "activities.seed.extensions.ExtensionActivities.wait_backup_entry_deleted delete": (f"delete {ENTRY} {DEMO}",),
    "activities.seed.extensions.ExtensionActivities.wait_backup_entry_deleted patch": (f"patch {ENTRY} {DEMO}",),
    "activities.seed.extensions.ExtensionActivities.wait_source_backup_entry_deleted delete": (
        f"delete {ENTRY} {SOURCE}",
    ),
    "activities.seed.extensions.ExtensionActivities.wait_source_backup_entry_deleted patch": (
        f"patch {ENTRY} {SOURCE}",
    ),
    "activities.seed.issuer.IssuerActivities.delete_public_sa_keys rollout.delete": (f"delete {PUBLIC_KEYS}",),
    "activities.seed.issuer.IssuerActivities.sync_public_sa_keys apply": applied(PUBLIC_KEYS),
    "activities.seed.migration.MigrationActivities.deploy_source_backup_entry apply": applied(f"{ENTRY} {SOURCE}"),
    "activities.seed.migration.MigrationActivities.deploy_source_backup_entry patch": (
        f"patch {ENTRY} garden-local/shoot--local--mover--uid-mover",
    ),
    "activities.seed.namespace.write_shoot_status patch": (f"patch {SHOOT}/status garden-local/demo",),
    "activities.seed.observability.ObservabilityActivities._delete delete": (
        "delete secrets garden-local/demo.monitoring",
    ),
    "activities.seed.observability.ObservabilityActivities.deploy_observability apply": applied(
        "secrets garden-local/demo.monitoring"
    ),
    "activities.seed.secrets.SecretActivities._publish _apply": applied(*PUBLISHED),
    "activities.seed.secrets.SecretActivities.cleanup_secrets _apply": applied(
        f"{INTERNAL} garden-local/demo.ca-client"
    ),
    "activities.seed.secrets.SecretActivities._publish _drop": ("delete secrets garden-local/demo.ssh-keypair.old",),
    "activities.seed.secrets._apply apply": applied(*PUBLISHED),
    "activities.seed.secrets._drop delete": ("delete secrets garden-local/demo.ssh-keypair.old",),
    "activities.seed.shoot_state.ShootStateActivities.delete_shootstate delete": (f"delete {STATE} garden-local/demo",),
    "activities.seed.shoot_state.ShootStateActivities.delete_shootstate patch": (f"patch {STATE} garden-local/demo",),
    "activities.seed.shoot_state.ShootStateActivities.persist_shootstate apply": applied(f"{STATE} garden-local/demo"),
    "activities.seed.workload_identity.ensure_token request": (f"create {IDENTITY}/token garden-local/named",),
    "activities.shoot.dual_stack.DualStackActivities._write edit": (f"patch {SHOOT}/status garden-local/demo",),
    "workers.gardenlet.backup_buckets.BackupBucketController._accept patch_as_read": (f"patch {BUCKET} /uid-seed-1",),
    "workers.gardenlet.backup_buckets.BackupBucketController._delete delete": (f"delete {GENERATED}",),
    "workers.gardenlet.backup_buckets.BackupBucketController._delete remove_finalizer": (
        f"patch {BUCKET} /uid-seed-1",
    ),
    "workers.gardenlet.backup_buckets.BackupBucketController._deploy ensure_finalizer": (
        f"patch {BUCKET} /uid-seed-1",
    ),
    "workers.gardenlet.backup_buckets.BackupBucketController._publish apply": applied(GENERATED),
    "workers.gardenlet.backup_buckets.BackupBucketController._report patch_as_read": (
        f"patch {BUCKET}/status /uid-seed-1",
    ),
    "workers.gardenlet.backup_entries.BackupEntryController._released remove_finalizer": (f"patch {ENTRY} {DEMO}",),
    "workers.gardenlet.backup_entries.BackupEntryController._revoke remove_finalizer": (f"patch {ENTRY} {LEFT}",),
    "workers.gardenlet.backup_entries.BackupEntryController._report patch_as_read": (
        f"patch {ENTRY} {DEMO}",
        f"patch {ENTRY}/status {DEMO}",
    ),
    "workers.gardenlet.bastions.BastionController._hold ensure_finalizer": (f"patch {BASTION} garden-local/mine",),
    "workers.gardenlet.bastions.BastionController._take_down remove_finalizer": (f"patch {BASTION} garden-local/mine",),
    "workers.gardenlet.bastions.BastionController._tell patch": (f"patch {BASTION}/status garden-local/mine",),
    "workers.gardenlet.care.controller.CareController._settle_updates patch": (
        f"patch {SHOOT}/status garden-local/demo",
    ),
    "workers.gardenlet.care.controller.CareController._write patch": (
        f"patch {SHOOT} garden-local/demo",
        f"patch {SHOOT}/status garden-local/demo",
    ),
    "workers.gardenlet.garden_access.GardenAccessController._answer emit": EVENT,
    "workers.gardenlet.garden_access.GardenAccessController._answer patch": (f"patch {SEED} /seed-1",),
    "workers.gardenlet.garden_access.GardenAccessController._reconcile emit": EVENT,
    "workers.gardenlet.garden_access.GardenAccessController._show patch": (SEED_STATUS,),
    "workers.gardenlet.installations.InstallationController._reconcile ensure_finalizer": (
        f"patch {INSTALLATION} /notes-mine",
    ),
    "workers.gardenlet.installations.InstallationController._remove delete": (
        "delete serviceaccounts seed-seed-1/extension-notes-mine",
    ),
    "workers.gardenlet.installations.InstallationController._remove remove_finalizer": (
        f"patch {INSTALLATION} /notes-mine",
    ),
    "workers.gardenlet.installations.InstallationController._tell patch_as_read": (
        f"patch {INSTALLATION}/status /notes-mine",
    ),
    "workers.gardenlet.kept_backups.KeptBackupsController._reconcile patch_as_read": (
        f"patch {ENTRY} garden-local/shoot--local--gone--uid-gone",
    ),
    "workers.gardenlet.required_installations.RequiredInstallations._write edit": (
        f"patch {INSTALLATION}/status /notes-mine",
    ),
    "workers.gardenlet.process.run GardenTokens": (
        *applied("serviceaccounts seed-seed-1/extension-notes-mine"),
        "create serviceaccounts/token seed-seed-1/extension-notes-mine",
    ),
    "workers.gardenlet.managed_seeds.ManagedSeedController._answer patch_as_read": (
        f"patch {MANAGED_SEED} garden/nested",
    ),
    "workers.gardenlet.managed_seeds.ManagedSeedController._remove remove_finalizer": (
        f"patch {MANAGED_SEED} garden/nested",
    ),
    "workers.gardenlet.managed_seeds.ManagedSeedController._tell patch": (
        f"patch {MANAGED_SEED}/status garden/nested",
    ),
    "workers.gardenlet.network_policies.NetworkPolicyController._warn emit": EVENT,
    "workers.gardenlet.seed_care.SeedCare._check write_seed_status": (SEED_STATUS,),
    "workers.gardenlet.registration.register apply_blindly": applied(f"{SEED} /seed-1"),
    "workers.gardenlet.registration.register emit": EVENT,
    "workers.gardenlet.remains.RemainsController._take_back write_seed_status": (SEED_STATUS,),
    "workers.gardenlet.remains.RemainsController._tell patch_as_read": (f"patch {SEED} /seed-1",),
    "workers.gardenlet.seed.SeedController._ask patch_as_read": (f"patch {SEED} /seed-1",),
    "workers.gardenlet.seed.SeedController._keep_status write_seed_status": (SEED_STATUS,),
    "workers.gardenlet.seed.SeedController._renew_lease apply": applied("namespaces /gardener-system-seed-lease"),
    "workers.gardenlet.seed.SeedController._renew_lease apply_blindly": applied(
        f"{LEASES} gardener-system-seed-lease/seed-1"
    ),
    "workers.gardenlet.seed.SeedController.run register": applied(f"{SEED} /seed-1"),
    "workers.gardenlet.self_upgrade.SelfUpgrade._answer patch_as_read": (f"patch {GARDENLET} garden/seed-1",),
    "workers.gardenlet.self_upgrade.SelfUpgrade._reconcile patch": (f"patch {SEED} /seed-1",),
    "workers.gardenlet.self_upgrade.SelfUpgrade._tell patch": (f"patch {GARDENLET}/status garden/seed-1",),
    "workers.gardenlet.token_requestor.TokenRequestor._renew_all emit": EVENT,
    "workers.gardenlet.token_requestor.TokenRequestor._renew_all patch": (f"patch {SEED} /seed-1",),
    # With clients of its own, one for each certificate.
    "workers.gardenlet.garden_access.GardenAccess._certificate create": (f"create {REQUESTS}", f"get {REQUESTS} /mine"),
}


def test_each_write_of_the_code_is_in_the_table() -> None:
    found = {each for path, tree in modules().items() for each in writes(path, tree)}

    assert found - WRITES.keys() == set(), "write down what it asks the garden for"
    assert WRITES.keys() - found == set(), "no code does this any more"


@pytest.mark.parametrize("question", sorted({each for questions in WRITES.values() for each in questions}))
async def test_the_garden_grants_it(authorizer: TestClient, question: str) -> None:
    assert await ask(authorizer, question) == {"allowed": True}


@pytest.mark.parametrize("question", sorted({each for questions in WRITES.values() for each in questions}))
def test_the_webhook_lists_the_fields_that_gardenlets_may_set(question: str) -> None:
    verb, what = question.split()[:2]
    kind, _, subresource = what.partition("/")
    plural, _, group = kind.partition(".")
    resource = next(each for each in RIGHTS if (each.group, each.plural) == (group, plural))
    owned = OWNED.get((resource, subresource), Owned())

    # A request for a token stores nothing, and no webhook is asked.
    if resource not in (resources.CERTIFICATE_SIGNING_REQUEST, resources.EVENT) and subresource != "token":
        assert verb not in ("create", "patch") or (owned.created or owned.changed)
        assert verb != "create" or owned.created


def modules() -> dict[Path, ast.Module]:
    """Modules of a gardenlet with their source, by path below the root."""
    found: dict[Path, ast.Module] = {}
    left = [path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    while left:
        path = left.pop()
        if path in found or path == REGISTRY or not (ROOT / path).is_file():
            continue
        found[path] = ast.parse((ROOT / path).read_text())
        for node in ast.walk(found[path]):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
                left += [file for name in names for file in _files(name)]
    return found


def _files(module: str) -> tuple[Path, Path]:
    path = Path(*module.split("."))
    return path.with_suffix(".py"), path / "__init__.py"


def writes(path: Path, tree: ast.AST, within: str = "") -> Iterator[str]:
    """``<function> <method>`` for each write by a garden client, ``<function> <callee>`` for each that gets one."""
    within = within or ".".join(path.with_suffix("").parts)
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from writes(path, node, f"{within}.{node.name}")
            continue
        if isinstance(node, ast.Assign) and (alias := _alias(node.targets[0], node.value)):
            yield f"{within} calls its garden client {alias}"
        if isinstance(node, ast.Call):
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            given = [*node.args, *(each.value for each in node.keywords)]
            callee = ast.unparse(node.func)
            if method in METHODS and (_is_client(node.func) or within.endswith("GardenAccess._certificate")):
                yield f"{within} {method}"
            elif callee not in READERS and any(_is_garden(each) for each in given):
                yield f"{within} {callee}"
        yield from writes(path, node, within)


def _alias(target: ast.expr, value: ast.expr) -> str:
    """Another name for a garden client, under which its calls would not be found."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return next(filter(None, map(_alias, target.elts, value.elts)), "")
    return ast.unparse(target) if _is_garden(value) and not _is_garden(target) else ""


def _is_client(method: ast.expr) -> bool:
    return isinstance(method, ast.Attribute) and _is_garden(method.value)


def _is_garden(value: ast.expr) -> bool:
    name = value.attr if isinstance(value, ast.Attribute) else value.id if isinstance(value, ast.Name) else ""
    return name in CLIENT
