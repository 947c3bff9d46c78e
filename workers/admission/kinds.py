"""Handlers of all kinds: they read the objects that a decision depends on, then call pure functions.

Handlers of Shoots, cloud profiles and bindings have modules of their own; the tables at the end name all.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable

from api import resources
from api.bastions.v1alpha1.bastion import Bastion
from api.constants import GARDEN_NAMESPACE, PROJECT_NAME, SEED_NAME_PREFIX, SEED_PROVIDER, SEED_REGION
from api.core.v1beta1.controller_installation import ControllerInstallation
from api.core.v1beta1.controller_registration import ControllerRegistration
from api.core.v1beta1.internal_secret import InternalSecret
from api.core.v1beta1.project import Project
from api.core.v1beta1.quota import Quota
from api.core.v1beta1.seed import Seed
from api.decisions import controller_deployments
from api.defaulting.bastion import default_bastion
from api.defaulting.cloud_profile import label_for_extensions
from api.defaulting.project import default_project
from api.meta import KubeObject
from api.resources import Object, Resource
from api.security.v1alpha1.workload_identity import WorkloadIdentity
from api.validation.backups import check_backup_bucket, check_backup_operation
from api.validation.bastion import (
    check_bastion,
    check_bastion_change,
    check_bastion_creator,
    check_bastion_provider,
    check_bastion_shoot,
)
from api.validation.charts import chart_fault
from api.validation.controllers import (
    check_controller_deployment,
    check_controller_installation,
    check_controller_registration,
    check_primary,
)
from api.validation.field import Faults, Path
from api.validation.garden import (
    check_project,
    check_seed,
    check_seed_change,
    check_seed_domains,
    check_seed_extensions,
    check_seed_operation,
    check_seed_unused,
    seed_domains,
)
from api.validation.operations import check_deletion_confirmed
from api.validation.quota import check_quota
from api.validation.workload_identity import check_no_identity, check_workload_identity
from workers.admission.bindings import mutate_binding, validate_binding
from workers.admission.domains import domains_of, overlapping
from workers.admission.indexes import (
    BINDINGS_BY_QUOTA,
    ENTRIES_BY_BUCKET,
    PROJECTS_BY_NAMESPACE,
    REGISTRATIONS_BY_KIND,
    SHOOTS_BELOW_DOMAIN,
    SHOOTS_BY_DOMAIN,
    SHOOTS_BY_SEED,
    place,
)
from workers.admission.logins import validate_reference
from workers.admission.managed_seed_sets import validate_managed_seed_set, validate_seed_autoscaler
from workers.admission.managed_seeds import (
    mutate_managed_seed,
    shoot_of_seed,
    validate_gardenlet,
    validate_managed_seed,
)
from workers.admission.plants import validate_plant
from workers.admission.profiles import (
    mutate_cloud_profile,
    mutate_namespaced_cloud_profile,
    validate_cloud_profile,
    validate_exposure_class,
    validate_namespaced_cloud_profile,
)
from workers.admission.review import (
    Garden,
    Refusal,
    Review,
    finalizer_dropped,
    full_name,
    refuse_forbidden,
    refuse_invalid,
    refuse_used,
)
from workers.admission.rights import require_for_project
from workers.admission.seed_writes import seed_credentials
from workers.admission.seeds import hindrances_of
from workers.admission.shoots import mutate_shoot, validate_shoot

Mutate = Callable[[Review, Garden], Awaitable[Object]]
"""Returns the object that the API server is to store."""
Validate = Callable[[Review, Garden], Awaitable[list[str]]]
"""Returns warnings; raises Refusal."""

# Seed, Project


async def mutate_seed(review: Review, garden: Garden) -> Object:
    seed, _ = review.models(Seed)
    labels = {
        f"{SEED_NAME_PREFIX}{seed.metadata.name}": "true",
        SEED_PROVIDER: seed.spec.provider.type,
        SEED_REGION: seed.spec.provider.region,
    }
    if not labels.items() <= seed.metadata.labels.items():
        seed.metadata.labels = seed.metadata.labels | labels
    return seed.to_wire()


async def validate_seed(review: Review, garden: Garden) -> list[str]:
    if review.operation == "DELETE":
        refuse_forbidden(review, check_seed_unused(review.name, await hindrances_of(review.name, garden)))
        return []
    seed, old = review.models(Seed)
    refuse_invalid(review, check_seed_operation(seed, old))
    if not review.spec_changed or review.deleting:
        return []
    refuse_invalid(review, check_seed(seed, old))
    if seed.spec.extensions:
        found = await garden.by_index(REGISTRATIONS_BY_KIND, resources.EXTENSION.kind)
        refuse_invalid(review, check_seed_extensions(seed, old, map(ControllerRegistration.of, found)))
    near = [
        shoot
        for _, domain in seed_domains(seed)
        for shoot in await overlapping(domain, SHOOTS_BY_DOMAIN, SHOOTS_BELOW_DOMAIN, garden)
    ]
    own = await shoot_of_seed(review.name, garden)
    foreign = [each for each in near if own is None or each["metadata"]["uid"] != own["metadata"]["uid"]]
    refuse_forbidden(review, check_seed_domains(seed, old, domains_of(foreign)))
    if old is not None:
        refuse_forbidden(review, check_seed_change(seed, old, await _shoots_on(review.name, garden)))
    refuse_forbidden(review, await _missing_seed_references(seed, garden))
    return []


async def _missing_seed_references(seed: Seed, garden: Garden) -> Faults:
    faults = Faults()
    for path, reference in seed_credentials(seed):
        faults.found += check_no_identity(path, reference.to_wire(), "backups and DNS of seeds").found
        if reference.kind in (None, "Secret") and not await garden.find(
            resources.SECRET, reference.name or "", reference.namespace
        ):
            faults.not_found(path, f"{reference.namespace}/{reference.name}", "there is no such Secret")
    return faults


async def _shoots_on(seed: str, garden: Garden) -> list[str]:
    return [full_name(each) for each in await garden.by_index(SHOOTS_BY_SEED, seed)]


async def mutate_project(review: Review, garden: Garden) -> Object:
    project, old = review.models(Project)
    default_project(project, old, review.user.name)
    return project.to_wire()


async def validate_project(review: Review, garden: Garden) -> list[str]:
    if review.operation == "DELETE":
        refuse_forbidden(review, check_deletion_confirmed(KubeObject.of(review.old or {})))
        return []
    project, old = review.models(Project)
    if finalizer_dropped(review) and project.spec.namespace:
        refuse_used(review, await garden.list(resources.SHOOT, project.spec.namespace), "it still has Shoots")
    if not review.spec_changed:
        return []
    if review.deleting:
        raise Refusal.forbidden(review, "spec: the Project is being deleted, its spec cannot be changed")
    namespace = project.spec.namespace
    others = await garden.by_index(PROJECTS_BY_NAMESPACE, namespace) if namespace else []
    refuse_invalid(review, check_project(project, [Project.of(each) for each in others]))
    if old is not None and old.spec.owner is not None and project.spec.owner is None:
        raise Refusal.forbidden(review, "spec.owner: cannot be removed")
    await require_for_project(review, garden, project, old)
    return []


async def validate_project_namespace(review: Review, garden: Garden) -> list[str]:
    """The namespace of a Project is deleted with the Project, after its Shoots."""
    labels = (review.old or {}).get("metadata", {}).get("labels") or {}
    project = await garden.find(resources.PROJECT, labels.get(PROJECT_NAME, ""))
    if project is None or project.get("spec", {}).get("namespace") != review.name:
        return []
    if "deletionTimestamp" not in project["metadata"]:
        name = project["metadata"]["name"]
        raise Refusal.forbidden(review, f"it belongs to Project {name}; delete the Project instead")
    refuse_used(review, await garden.list(resources.SHOOT, review.name), "it still has Shoots")
    return []


# Quotas and the rest


async def validate_quota(review: Review, garden: Garden) -> list[str]:
    """A deletion is not refused: a finalizer delays it until no binding names the Quota."""
    if review.operation == "DELETE":
        return []
    if review.spec_changed:
        refuse_invalid(review, check_quota(*review.models(Quota)))
    if finalizer_dropped(review):
        named = place(review.namespace, review.name, resources.QUOTA)
        users = [each for index in BINDINGS_BY_QUOTA.values() for each in await garden.by_index(index, named)]
        # Bindings of other namespaces may be unknown to the user, so the message gives their number alone.
        if users:
            raise Refusal.forbidden(review, f"{len(users)} bindings name it: delete them first")
    return []


async def mutate_internal_secret(review: Review, garden: Garden) -> Object:
    """Move ``stringData``, which is write-only, to ``data``."""
    review.models(InternalSecret)  # the schema is validated later
    obj = dict(review.object or {})
    plain = obj.pop("stringData", None) or {}
    if plain:
        encoded = {key: b64encode(value.encode()).decode() for key, value in plain.items()}
        obj["data"] = (obj.get("data") or {}) | encoded
    return obj


async def validate_shoot_state(review: Review, garden: Garden) -> list[str]:
    if review.operation == "DELETE":
        refuse_forbidden(review, check_deletion_confirmed(KubeObject.of(review.old or {})))
    return []


async def mutate_workload_identity(review: Review, garden: Garden) -> Object:
    """Set the label by which webhooks of a provider's extension select its WorkloadIdentities."""
    identity, _ = review.models(WorkloadIdentity)
    label_for_extensions(identity, identity.spec.target_system.type)
    return identity.to_wire()


async def validate_workload_identity(review: Review, garden: Garden) -> list[str]:
    """A deletion is not refused: finalizers delay it until no binding and no Shoot refers to the WorkloadIdentity."""
    if review.operation == "DELETE" or not review.spec_changed or review.deleting:
        return []
    refuse_invalid(review, check_workload_identity(*review.models(WorkloadIdentity)))
    return []


async def validate_backup_bucket(review: Review, garden: Garden) -> list[str]:
    if review.operation == "DELETE":
        refuse_used(review, await garden.by_index(ENTRIES_BY_BUCKET, review.name), "it holds BackupEntries")
        return []
    refuse_invalid(review, check_backup_operation(*review.models(KubeObject)))
    if review.spec_changed and not review.deleting:
        spec = (review.object or {}).get("spec") or {}
        refuse_forbidden(
            review, check_no_identity(Path("spec") / "credentialsRef", spec.get("credentialsRef"), "backups")
        )
        if review.old is None:
            seed = await garden.find(resources.SEED, spec.get("seedName") or "")
            refuse_forbidden(review, check_backup_bucket(review.name, spec, seed))
    return []


async def validate_backup_entry(review: Review, garden: Garden) -> list[str]:
    if review.operation != "DELETE":
        refuse_invalid(review, check_backup_operation(*review.models(KubeObject)))
    return []


async def validate_controller_deployment(review: Review, garden: Garden) -> list[str]:
    """A deletion is not refused: a finalizer delays it until no ControllerRegistration names the object."""
    if review.object is None or review.deleting:
        return []
    if review.old is None or _without_metadata(review.object) != _without_metadata(review.old):
        refuse_invalid(review, check_controller_deployment(review.object))
        await _check_chart(review)
        new = _referred_by(review.object) - (_referred_by(review.old) if review.old else set())
        faults = Faults()
        for resource, name in sorted(new, key=str):
            if not await garden.find(resource, name, GARDEN_NAMESPACE):
                why = f"there is no such {resource.kind} in namespace {GARDEN_NAMESPACE}"
                faults.not_found(Path("resources"), name, why)
        refuse_forbidden(review, faults)
    return []


async def _check_chart(review: Review) -> None:
    """Refuse a new chart that Helm could not load: the gardenlets would say so later, in each seed."""
    path, chart = _chart(review.object)
    if not chart or chart == _chart(review.old)[1]:
        return
    # In a thread: a small archive may have a large content.
    if fault := await asyncio.to_thread(chart_fault, chart):
        faults = Faults()
        faults.invalid(path, f"{len(chart)} characters", fault)
        raise Refusal.invalid(review, faults)


def _chart(deployment: Object | None) -> tuple[Path, str]:
    """Field of the chart in the object's version, and the chart; empty if there is none."""
    found = deployment or {}
    if found.get("apiVersion") == resources.CONTROLLER_DEPLOYMENT.api_version:
        return Path("helm.rawChart"), (found.get("helm") or {}).get("rawChart") or ""
    config = found.get("providerConfig") if found.get("type") == controller_deployments.HELM else None
    return Path("providerConfig.chart"), (config or {}).get("chart") or ""


def _referred_by(deployment: Object) -> set[tuple[Resource, str]]:
    """Objects that it names; none for a stored object that contradicts itself."""
    try:
        newest = controller_deployments.converted(deployment, resources.CONTROLLER_DEPLOYMENT.api_version)
    except controller_deployments.Unconvertible:
        return set()
    return controller_deployments.references(newest)


def _without_metadata(obj: Object) -> Object:
    """The fields of an object that has no spec, and its annotations, which may hold fields of another version."""
    return {**obj, "metadata": obj["metadata"].get("annotations")}


async def validate_controller_registration(review: Review, garden: Garden) -> list[str]:
    """It must be consistent, be the only primary of its kinds and types, and name ControllerDeployments that exist.

    Two registrations that are written at the same moment may both become primary: each review knows those before it.
    The older one then counts, and the controller-manager installs no other (``api.decisions.installations``).
    """
    if review.object is None or review.deleting or not (review.spec_changed or _annotations_changed(review)):
        return []
    registration, _ = review.models(ControllerRegistration)
    refuse_invalid(review, check_controller_registration(registration))
    others = [
        each
        for kind in sorted({each.kind for each in registration.spec.resources or () if each.primary})
        for each in await garden.by_index(REGISTRATIONS_BY_KIND, kind)
    ]
    refuse_forbidden(review, check_primary(registration, others))
    faults, known = Faults(), _deployments(review.old)
    for index, name in enumerate(_deployments(review.object)):
        if name not in known and not await garden.find(resources.CONTROLLER_DEPLOYMENT, name):
            path = Path("spec.deployment.deploymentRefs") @ index / "name"
            faults.not_found(path, name, "there is no such ControllerDeployment")
    refuse_forbidden(review, faults)
    deployment = registration.spec.deployment
    if deployment is not None and deployment.policy != "OnDemand" and not deployment.deployment_refs:
        return [
            f"spec.deployment.policy {deployment.policy} has no effect without deploymentRefs: nothing is installed"
        ]
    return []


def _annotations_changed(review: Review) -> bool:
    old, new = ((each or {}).get("metadata", {}).get("annotations") or {} for each in (review.old, review.object))
    return bool(old != new)


async def validate_controller_installation(review: Review, garden: Garden) -> list[str]:
    """It must name a registration, a Seed and a deployment that exist, and keep the first two."""
    if review.object is None or review.deleting or review.subresource or not review.spec_changed:
        return []
    installation, old = review.models(ControllerInstallation)
    refuse_invalid(review, check_controller_installation(installation, old))
    faults = Faults()
    for resource, field in (
        (resources.CONTROLLER_REGISTRATION, "registrationRef"),
        (resources.SEED, "seedRef"),
        (resources.CONTROLLER_DEPLOYMENT, "deploymentRef"),
    ):
        name, known = _referred(review.object, field), _referred(review.old, field)
        if name and name != known and not await garden.find(resource, name):
            faults.not_found(Path("spec") / field / "name", name, f"there is no such {resource.kind}")
    refuse_forbidden(review, faults)
    return []


def _referred(installation: Object | None, field: str) -> str:
    found: str = (((installation or {}).get("spec") or {}).get(field) or {}).get("name") or ""
    return found


def _deployments(registration: Object | None) -> list[str]:
    deployment = ((registration or {}).get("spec") or {}).get("deployment") or {}
    return [each["name"] for each in deployment.get("deploymentRefs") or ()]


# Bastion


async def mutate_bastion(review: Review, garden: Garden) -> Object:
    bastion, old = review.models(Bastion)
    default_bastion(bastion, old, await _bastion_shoot(bastion, review, garden), review.user.name)
    return bastion.to_wire()


async def validate_bastion(review: Review, garden: Garden) -> list[str]:
    if review.operation == "DELETE" or review.deleting:
        return []
    bastion, old = review.models(Bastion)
    if old is not None:
        refuse_invalid(review, check_bastion_change(bastion, old))
        refuse_forbidden(review, check_bastion_creator(bastion, old, review.user.name))
    if review.spec_changed:
        refuse_invalid(review, check_bastion(bastion))
    if old is None:
        refuse_forbidden(review, check_bastion_shoot(bastion, await _bastion_shoot(bastion, review, garden)))
        registrations = await garden.list(resources.CONTROLLER_REGISTRATION)
        refuse_forbidden(review, check_bastion_provider(bastion, registrations))
    return []


async def _bastion_shoot(bastion: Bastion, review: Review, garden: Garden) -> Object | None:
    return await garden.find(resources.SHOOT, bastion.spec.shoot_ref.name, review.namespace)


MUTATORS: dict[Resource, Mutate] = {
    resources.SHOOT: mutate_shoot,
    resources.PROJECT: mutate_project,
    resources.SEED: mutate_seed,
    resources.CLOUD_PROFILE: mutate_cloud_profile,
    resources.NAMESPACED_CLOUD_PROFILE: mutate_namespaced_cloud_profile,
    resources.SECRET_BINDING: mutate_binding,
    resources.INTERNAL_SECRET: mutate_internal_secret,
    resources.CREDENTIALS_BINDING: mutate_binding,
    resources.WORKLOAD_IDENTITY: mutate_workload_identity,
    resources.OPERATIONS_BASTION: mutate_bastion,
    resources.MANAGED_SEED: mutate_managed_seed,
}
"""Handlers of creations and updates, which set defaults. The webhook rules are made from these tables."""
VALIDATORS: dict[Resource, Validate] = {
    resources.SHOOT: validate_shoot,
    resources.PROJECT: validate_project,
    resources.SEED: validate_seed,
    resources.CLOUD_PROFILE: validate_cloud_profile,
    resources.NAMESPACED_CLOUD_PROFILE: validate_namespaced_cloud_profile,
    resources.EXPOSURE_CLASS: validate_exposure_class,
    resources.QUOTA: validate_quota,
    resources.SECRET_BINDING: validate_binding,
    resources.SHOOT_STATE: validate_shoot_state,
    resources.CORE_BACKUP_BUCKET: validate_backup_bucket,
    resources.CORE_BACKUP_ENTRY: validate_backup_entry,
    resources.CREDENTIALS_BINDING: validate_binding,
    resources.WORKLOAD_IDENTITY: validate_workload_identity,
    resources.OPERATIONS_BASTION: validate_bastion,
    resources.PLANT: validate_plant,
    # Both versions, so that the author of an object is told the faults by the names of the fields that it wrote.
    resources.CONTROLLER_DEPLOYMENT: validate_controller_deployment,
    resources.CONTROLLER_DEPLOYMENT_V1BETA1: validate_controller_deployment,
    resources.CONTROLLER_REGISTRATION: validate_controller_registration,
    resources.CONTROLLER_INSTALLATION: validate_controller_installation,
    resources.MANAGED_SEED: validate_managed_seed,
    resources.MANAGED_SEED_SET: validate_managed_seed_set,
    resources.SEED_AUTOSCALER: validate_seed_autoscaler,
    resources.GARDENLET: validate_gardenlet,
}
"""Handlers of creations, updates and deletions."""
REFERENCE_VALIDATORS: dict[Resource, Validate] = {
    resources.CONFIG_MAP: validate_reference,
    resources.SECRET: validate_reference,
}
"""Handlers of creations and updates of objects that Shoots name, in namespaces of Projects only."""
DELETION_VALIDATORS: dict[Resource, Validate] = {resources.NAMESPACE: validate_project_namespace}
"""Handlers of deletions only; of namespaces, only those of Projects."""
