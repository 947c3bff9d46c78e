"""Handlers for each kind: they read the objects that a decision depends on, then call pure functions."""

from __future__ import annotations

import random
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime

from api import resources
from api.bastions.v1alpha1.bastion import Bastion
from api.constants import (
    AUTHENTICATION,
    AUTHENTICATION_ISSUER,
    CHANGED_BY,
    CONTROL_PLANE_MIGRATION,
    GARDEN_NAMESPACE,
    MIGRATION_BAD_CASE,
    PROJECT_NAME,
    RECORD,
    REPAIR_VERB,
    SECURITY,
    SEED_NAME_PREFIX,
    SEED_PROVIDER,
    SEED_REGION,
    SHOOT_EXPIRATION_TIMESTAMP,
)
from api.core.v1beta1.cloud_profile import CloudProfile
from api.core.v1beta1.controller_registration import ControllerRegistration
from api.core.v1beta1.internal_secret import InternalSecret
from api.core.v1beta1.project import Project
from api.core.v1beta1.quota import Quota
from api.core.v1beta1.secret_binding import SecretBinding
from api.core.v1beta1.seed import Seed
from api.core.v1beta1.shoot import Shoot
from api.decisions import alerting
from api.decisions.credentials import BINDINGS, Binding
from api.decisions.issuer import MANAGED, SELECTOR, is_managed
from api.decisions.lifetime import lifetime
from api.decisions.profiles import profile_of, profile_reference, root_of
from api.defaulting.bastion import default_bastion
from api.defaulting.cloud_profile import label_for_extensions
from api.defaulting.project import default_project
from api.defaulting.shoot import Surroundings, default_shoot, only_bound
from api.meta import KubeObject
from api.names import backup_entry_names, domains_above
from api.resources import Object, Resource
from api.security.v1alpha1.credentials_binding import CredentialsBinding
from api.security.v1alpha1.workload_identity import WorkloadIdentity
from api.validation.bastion import (
    check_bastion,
    check_bastion_change,
    check_bastion_creator,
    check_bastion_provider,
    check_bastion_shoot,
)
from api.validation.binding import check_move, check_while_moving, is_moving
from api.validation.controllers import check_controller_deployment
from api.validation.field import Faults, Path
from api.validation.garden import (
    check_project,
    check_seed,
    check_seed_change,
    check_seed_domains,
    check_seed_operation,
    check_seed_unused,
    domains_of_seed,
    seed_domains,
)
from api.validation.operations import (
    check_deletion_confirmed,
    check_dual_approval,
    check_expiration,
    check_finalizer_kept,
    check_operations,
    check_repairs,
    new_repairs,
)
from api.validation.quota import check_quota, check_quotas_of_binding
from api.validation.references import ProfileChange, World, check_references, needed_extensions, references
from api.validation.shoot import check_shoot
from api.validation.warnings import warnings
from api.validation.workload_identity import check_no_identity, check_target_type, check_workload_identity
from workers.admission.indexes import (
    BINDINGS_BY_QUOTA,
    ENTRIES_BY_BUCKET,
    ENTRIES_BY_SEED,
    PROJECTS_BY_NAMESPACE,
    REGISTRATIONS_BY_KIND,
    SEEDS_BELOW_DOMAIN,
    SEEDS_BY_DEFAULT_DOMAIN,
    SEEDS_BY_DOMAIN,
    SHOOTS_BELOW_DOMAIN,
    SHOOTS_BY_DOMAIN,
    SHOOTS_BY_REFERENCE,
    SHOOTS_BY_SEED,
    Index,
    place,
)
from workers.admission.logins import check_shoot as check_logins
from workers.admission.logins import validate_reference
from workers.admission.profiles import (
    mutate_cloud_profile,
    mutate_namespaced_cloud_profile,
    validate_cloud_profile,
    validate_namespaced_cloud_profile,
    warn_of_exposure_class,
)
from workers.admission.projects import control_plane, project_of
from workers.admission.protection import is_controller
from workers.admission.quotas import check_quotas, quotas_of
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
from workers.admission.rights import require, require_for_project, require_for_shoot
from workers.admission.seed_writes import seed_credentials
from workers.admission.switches import check_binding_switch

Mutate = Callable[[Review, Garden], Awaitable[Object]]
"""Returns the object that the API server is to store."""
Validate = Callable[[Review, Garden], Awaitable[list[str]]]
"""Returns warnings; raises Refusal."""

_BINDING = replace(resources.SHOOT, plural="shoots/binding")
_AUTHORS = Resource(AUTHENTICATION, "v1alpha1", "Author", "authors")


# Shoot


async def mutate_shoot(review: Review, garden: Garden) -> Object:
    shoot, old = review.models(Shoot)
    domain = (shoot.spec.dns.domain if shoot.spec.dns else None) or ""
    binder = await _binder(review, shoot, old, garden)
    around = Surroundings(
        profile=await _profile(shoot, garden),
        seed=await _seed(shoot.spec.seed_name, garden),
        project=await _project_of(review.namespace, garden),
        user=review.user.name,
        now=datetime.now(UTC),
        random=random.Random(),
        default_domains=await _default_domains_above(domain, garden),
        binder=binder,
    )
    default_shoot(shoot, old, around)
    return shoot.to_wire()


async def _binder(review: Review, shoot: Shoot, old: Shoot | None, garden: Garden) -> str:
    """Name of a user in the annotation ``changed-by`` of a binding; empty if the author may not name other users.

    Only the subresource server may: it binds Shoots for users, by its own connection.
    """
    named = shoot.metadata.annotations.get(CHANGED_BY, "")
    if old is None or named in ("", old.metadata.annotations.get(CHANGED_BY)) or not only_bound(shoot, old):
        return ""
    may_name = await garden.allowed(review.user, RECORD, _AUTHORS, review.namespace, "")
    return named if may_name else ""


async def validate_shoot(review: Review, garden: Garden) -> list[str]:
    if review.operation == "DELETE":
        doomed = review.old or {}
        refuse_forbidden(review, check_deletion_confirmed(KubeObject.of(doomed)))
        project, by_controller = await _project_of(review.namespace, garden), is_controller(review.user)
        refuse_forbidden(
            review,
            check_dual_approval(KubeObject.of(doomed), project, review.user.name, by_controller=by_controller),
        )
        if "spec" in doomed and is_moving(Shoot.of(doomed)):
            raise Refusal.forbidden(
                review, f"its control plane moves to {doomed['spec']['seedName']}: wait for the end of the move"
            )
        return []
    shoot, old = review.models(Shoot)
    refuse_invalid(review, check_operations(shoot, old))
    await _check_repairs(review, shoot, old, garden)
    if old is not None:
        refuse_forbidden(review, check_finalizer_kept(shoot, old))
    if shoot.metadata.annotations.get(SHOOT_EXPIRATION_TIMESTAMP):
        allowed = lifetime(await quotas_of(shoot.to_wire(), garden))
        refuse_forbidden(review, check_expiration(shoot, old, allowed, datetime.now(UTC)))
    await _check_bad_case(review, shoot, old, garden)
    await _check_issuer(review, shoot, old, garden)
    if not review.spec_changed:
        return []
    if review.deleting:
        raise Refusal.forbidden(review, "spec: the Shoot is being deleted, its spec cannot be changed")
    if old is not None and is_moving(old):
        await _check_move_undisturbed(review, shoot, old, garden)
    project = await _project_of(review.namespace, garden)
    refuse_invalid(review, check_shoot(shoot, old, project.metadata.name if project else None))
    await _check_seed_choice(review, shoot, old, garden)
    await require_for_shoot(review, garden, shoot, old)
    await _check_dns_identities(review, shoot, old, garden)
    world = await _world(shoot, old, project, garden)
    refuse_forbidden(review, check_references(shoot, old, world))
    await check_binding_switch(review, shoot, old, garden)
    await check_logins(review, shoot, old, garden)
    await check_quotas(review, shoot, old, garden)
    mails = not alerting.receivers(shoot.to_wire()) or bool(
        alerting.servers(await garden.list(resources.SECRET, GARDEN_NAMESPACE, labels=alerting.SELECTOR))
    )
    return warnings(shoot, world.profile, world.now, mails=mails)


async def _check_issuer(review: Review, shoot: Shoot, old: Shoot | None, garden: Garden) -> None:
    """A managed issuer stays as long as the cluster exists, because third parties trust the cluster's tokens by it."""
    text, managed = f"metadata.annotations[{AUTHENTICATION_ISSUER}]", is_managed(shoot.metadata.annotations)
    before = old is not None and is_managed(old.metadata.annotations)
    if before and not managed:
        raise Refusal.forbidden(review, f"{text}: must stay {MANAGED}: third parties verify the cluster's tokens by it")
    server = shoot.spec.kubernetes.kube_api_server
    accounts = server.service_account_config if server else None
    if managed and accounts and accounts.issuer:
        raise Refusal.forbidden(
            review, f"{text}: excludes spec.kubernetes.kubeAPIServer.serviceAccountConfig.issuer: take one of them out"
        )
    if managed and not before and not await garden.list(resources.SECRET, GARDEN_NAMESPACE, labels=SELECTOR):
        raise Refusal.forbidden(
            review, f"{text}: this garden has no managed issuer: an operator can set one up (a Secret with {SELECTOR})"
        )


async def _check_dns_identities(review: Review, shoot: Shoot, old: Shoot | None, garden: Garden) -> None:
    """Each WorkloadIdentity that a Shoot names for DNS must be for the type of that provider."""
    known = ((old.spec.dns and old.spec.dns.providers) or []) if old is not None else []
    for index, provider in enumerate((shoot.spec.dns and shoot.spec.dns.providers) or []):
        reference = provider.credentials_ref
        if reference is None or reference.kind != resources.WORKLOAD_IDENTITY.kind or provider in known:
            continue
        identity = await garden.find(resources.WORKLOAD_IDENTITY, reference.name, review.namespace)
        if identity is not None:  # another check reports that it does not exist
            path = Path("spec") / "dns" / "providers" @ index / "credentialsRef"
            refuse_forbidden(review, check_target_type(path, identity, [provider.type or ""]))


async def _check_repairs(review: Review, shoot: Shoot, old: Shoot | None, garden: Garden) -> None:
    """A user who repairs operations needs a verb of its own on Shoots, which no other request uses."""
    if not (names := new_repairs(shoot, old)):
        return
    field = f"metadata.annotations[{names[0]}]"
    await require(
        review, garden, field, REPAIR_VERB, resources.SHOOT, review.namespace, review.name, hint="operators may"
    )
    refuse_invalid(review, check_repairs(shoot, names))


async def _check_seed_choice(review: Review, shoot: Shoot, old: Shoot | None, garden: Garden) -> None:
    """A user who sets ``spec.seedName`` needs the right to update shoots/binding."""
    before = old.spec.seed_name if old else None
    if shoot.spec.seed_name == before:
        return
    hint = "the scheduler chooses seeds"
    await require(review, garden, "spec.seedName", "update", _BINDING, review.namespace, review.name, hint=hint)
    if old is not None and before is not None and not is_moving(old):
        source, destination = await _seed(before, garden), await _seed(shoot.spec.seed_name, garden)
        await _check_nothing_left_behind(review, old, garden)
        refuse_forbidden(review, check_move(shoot, old, source, destination))


async def _check_nothing_left_behind(review: Review, old: Shoot, garden: Garden) -> None:
    """A Shoot cannot move while its BackupEntry for the source of an earlier move exists.

    A lost seed that comes back learns from this BackupEntry that the control plane has moved.
    """
    at_source, _ = await _backup_entry_names(old, garden)
    entry = await garden.find(resources.CORE_BACKUP_ENTRY, at_source, review.namespace)
    if entry is None:
        return
    raise Refusal.forbidden(
        review,
        f"spec.seedName: the lost source seed (bucket {entry['spec']['bucketName']}) has not deleted its remains of "
        "the control plane: wait until it is back and has deleted them; if it never comes back, delete BackupEntry "
        f"{entry['metadata']['name']}",
    )


async def _backup_entry_names(shoot: Shoot, garden: Garden) -> tuple[str, str]:
    wire = shoot.to_wire()
    return backup_entry_names(await control_plane(wire, garden) or "", wire["metadata"].get("uid") or "")


async def _check_bad_case(review: Review, shoot: Shoot, old: Shoot | None, garden: Garden) -> None:
    """A user who declares a seed lost needs a right: if the seed still serves, two seeds would serve one cluster."""
    said = shoot.metadata.annotations.get(CONTROL_PLANE_MIGRATION)
    if said is None or (old is not None and old.metadata.annotations.get(CONTROL_PLANE_MIGRATION) == said):
        return
    text = f"metadata.annotations[{CONTROL_PLANE_MIGRATION}]"
    if said != MIGRATION_BAD_CASE:
        raise Refusal.forbidden(review, f"{text}: must be {MIGRATION_BAD_CASE}")
    home = shoot.status.seed_name if shoot.status else None
    if not home or home == shoot.spec.seed_name:
        raise Refusal.forbidden(review, f"{text}: the control plane does not move; name another seed in spec.seedName")
    await require(review, garden, text, "update", _BINDING, review.namespace, review.name)


async def _check_move_undisturbed(review: Review, shoot: Shoot, old: Shoot, garden: Garden) -> None:
    """The spec must not change during a move. The owner may abort the move until the destination has begun."""
    # The destination begins its preparation with a BackupEntry for the source's bucket.
    at_source, own = await _backup_entry_names(old, garden)
    entry = await garden.find(resources.CORE_BACKUP_ENTRY, at_source, review.namespace) or await garden.find(
        resources.CORE_BACKUP_ENTRY, own, review.namespace
    )
    backups_at = ((entry or {}).get("spec") or {}).get("seedName")
    refuse_forbidden(review, check_while_moving(shoot, old, backups_at))


async def _world(shoot: Shoot, old: Shoot | None, project: Project | None, garden: Garden) -> World:
    missing = [each for each in references(shoot) if not await garden.find(each.resource, each.name, each.namespace)]
    seed_name = shoot.spec.seed_name
    domain = (shoot.spec.dns.domain if shoot.spec.dns else None) or ""
    shoots = await garden.by_index(SHOOTS_BY_SEED, seed_name) if seed_name else []
    return World(
        project=project,
        profile=await _profile(shoot, garden),
        seed=await _seed(seed_name, garden),
        shoots_on_seed=sum(
            1
            for each in shoots
            if each["spec"].get("seedName") == seed_name and each["metadata"].get("uid") != shoot.metadata.uid
        ),
        registrations=await _registrations(shoot, garden),
        binding_provider=await _binding_provider(shoot, garden),
        missing=tuple(missing),
        now=datetime.now(UTC),
        default_domains=await _default_domains_above(domain, garden),
        other_domains=_domains(
            each
            for each in await _overlapping(domain, SHOOTS_BY_DOMAIN, SHOOTS_BELOW_DOMAIN, garden)
            if each["metadata"].get("uid") != shoot.metadata.uid
        ),
        seed_domains=frozenset(
            each
            for seed in await _overlapping(domain, SEEDS_BY_DOMAIN, SEEDS_BELOW_DOMAIN, garden)
            for each in domains_of_seed(seed)
        ),
        left=await _left_profile(shoot, old, garden),
    )


async def _registrations(shoot: Shoot, garden: Garden) -> tuple[ControllerRegistration, ...]:
    """Registrations of the kinds of extension objects that a Shoot will have."""
    kinds = sorted({kind for _, kind, _ in needed_extensions(shoot)})
    found = {
        each["metadata"]["name"]: each for kind in kinds for each in await garden.by_index(REGISTRATIONS_BY_KIND, kind)
    }
    return tuple(ControllerRegistration.of(each) for each in found.values())


async def _overlapping(domain: str, exact: Index, below: Index, garden: Garden) -> list[Object]:
    """Objects with a domain that is equal to this one, above it or below it; none for an empty domain.

    ``exact`` finds objects by their domains, ``below`` by their domains and all domains above these.
    """
    if not domain:
        return []
    own, *above = domains_above(domain)
    found = await garden.by_index(below, own)
    for each in above:
        found += await garden.by_index(exact, each)
    return found


async def _default_domains_above(domain: str, garden: Garden) -> frozenset[str]:
    """Default domains of Seeds that are equal to a domain, or above it."""
    found = []
    for each in domains_above(domain) if domain else ():
        found += await garden.by_index(SEEDS_BY_DEFAULT_DOMAIN, each)
    return frozenset(each["domain"] for seed in found for each in seed["spec"]["dns"].get("defaults") or ())


def _domains(shoots: Iterable[Object]) -> dict[str, str]:
    """Domains of Shoots, by ``namespace/name``."""
    return {full_name(each): domain for each in shoots if (domain := (each["spec"].get("dns") or {}).get("domain"))}


async def _binding(shoot: Shoot, garden: Garden) -> Object | None:
    spec, namespace = shoot.spec, shoot.metadata.namespace
    if spec.credentials_binding_name:
        return await garden.find(resources.CREDENTIALS_BINDING, spec.credentials_binding_name, namespace)
    if spec.secret_binding_name:
        return await garden.find(resources.SECRET_BINDING, spec.secret_binding_name, namespace)
    return None


async def _binding_provider(shoot: Shoot, garden: Garden) -> str | None:
    provider: str | None = ((await _binding(shoot, garden) or {}).get("provider") or {}).get("type")
    return provider


async def _profile(shoot: Shoot, garden: Garden) -> CloudProfile | None:
    found = await profile_of(_naming_profile(shoot), garden.find)
    return CloudProfile.of(found) if found else None


def _naming_profile(shoot: Shoot) -> Object:
    """The part of a Shoot that names its profile: to write the whole object takes ten times as long."""
    spec = shoot.spec.model_dump(by_alias=True, exclude_none=True, include={"cloud_profile", "cloud_profile_name"})
    return {"metadata": {"namespace": shoot.metadata.namespace}, "spec": spec}


async def _left_profile(shoot: Shoot, old: Shoot | None, garden: Garden) -> ProfileChange | None:
    before, after = (profile_reference(_naming_profile(each)) if each else None for each in (old, shoot))
    if old is None or before is None or before == after:
        return None
    return ProfileChange(
        await _profile(old, garden), await root_of(before, garden.find), await root_of(after, garden.find)
    )


async def _seed(name: str | None, garden: Garden) -> Seed | None:
    found = await garden.find(resources.SEED, name) if name else None
    return Seed.of(found) if found else None


async def _project_of(namespace: str, garden: Garden) -> Project | None:
    found = await project_of(namespace, garden)
    return Project.of(found) if found else None


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
        entries = await garden.by_index(ENTRIES_BY_SEED, review.name)
        shoots = await _shoots_on(review.name, garden)
        refuse_forbidden(review, check_seed_unused(review.name, shoots, [full_name(each) for each in entries]))
        return []
    seed, old = review.models(Seed)
    refuse_invalid(review, check_seed_operation(seed, old))
    if not review.spec_changed or review.deleting:
        return []
    refuse_invalid(review, check_seed(seed, old))
    overlapping = [
        shoot
        for _, domain in seed_domains(seed)
        for shoot in await _overlapping(domain, SHOOTS_BY_DOMAIN, SHOOTS_BELOW_DOMAIN, garden)
    ]
    refuse_forbidden(review, check_seed_domains(seed, old, _domains(overlapping)))
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


# Bindings and the rest


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


async def mutate_binding(review: Review, garden: Garden) -> Object:
    """Set the binding's namespace in references without a namespace."""
    review.models(_model_of_binding(review))  # the schema is validated later
    obj = dict(review.object or {})
    for field in ("secretRef", "credentialsRef"):
        if field in obj and not obj[field].get("namespace"):
            obj[field] = {**obj[field], "namespace": review.namespace}
    if obj.get("quotas"):
        obj["quotas"] = [
            each if each.get("namespace") else {**each, "namespace": review.namespace} for each in obj["quotas"]
        ]
    return obj


async def validate_binding(review: Review, garden: Garden) -> list[str]:
    if finalizer_dropped(review):
        binding = place(review.namespace, review.name, _binding_kind(review).resource)
        refuse_used(review, await garden.by_index(SHOOTS_BY_REFERENCE, binding))
        return []
    if review.operation == "CREATE":
        await _check_bound(review, review.models(_model_of_binding(review))[0], garden)
    return []


def _model_of_binding(review: Review) -> type[KubeObject]:
    return CredentialsBinding if review.group == SECURITY else SecretBinding


def _binding_kind(review: Review) -> Binding:
    return BINDINGS[resources.CREDENTIALS_BINDING if review.group == SECURITY else resources.SECRET_BINDING]


async def _check_bound(review: Review, binding: KubeObject, garden: Garden) -> None:
    """The author of a binding must be allowed to read the objects that it names."""
    wire, kind = binding.to_wire(), _binding_kind(review)
    path, credentials = kind.credentials_field, kind.credentials(wire)
    try:
        resource = resources.resource_of(credentials.api_version, credentials.kind)
    except KeyError:
        kinds = (
            "v1 Secret, core.gardener.cloud/v1beta1 InternalSecret, security.gardener.cloud/v1alpha1 WorkloadIdentity"
        )
        raise Refusal.forbidden(review, f"{path}: {credentials.kind} is none of {kinds}") from None
    bound = [(path, resource, credentials.namespace, credentials.name)]
    for index, each in enumerate(wire.get("quotas") or []):
        if not each.get("name"):
            raise Refusal.forbidden(review, f"quotas[{index}].name: Required value: must name a Quota")
        bound.append((f"quotas[{index}]", resources.QUOTA, each.get("namespace") or review.namespace, each["name"]))
    for path, resource, namespace, name in bound:
        # The right first: the answer must not tell whether a Secret of another Project exists.
        await require(review, garden, path, "get", resource, namespace, name)
        if not await garden.find(resource, name, namespace):
            where = f"{namespace}/{name}"
            raise Refusal.forbidden(review, f'{path}: Not found: "{where}": there is no such {resource.kind}')
    if bound[0][1] == resources.WORKLOAD_IDENTITY:
        identity = await garden.find(resources.WORKLOAD_IDENTITY, credentials.name, credentials.namespace)
        types = ((wire.get("provider") or {}).get("type") or "").split(",")
        refuse_forbidden(review, check_target_type(Path(kind.credentials_field), identity or {}, types))
    quotas = [await garden.find(resources.QUOTA, name, namespace) for _, _, namespace, name in bound[1:]]
    refuse_forbidden(review, check_quotas_of_binding([each for each in quotas if each is not None]))


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
    elif review.spec_changed and not review.deleting:
        reference = ((review.object or {}).get("spec") or {}).get("credentialsRef")
        refuse_forbidden(review, check_no_identity(Path("spec") / "credentialsRef", reference, "backups"))
    return []


async def validate_controller_deployment(review: Review, garden: Garden) -> list[str]:
    """A deletion is not refused: a finalizer delays it until no ControllerRegistration names the object."""
    if review.object is None or review.deleting:
        return []
    if review.old is None or _without_metadata(review.object) != _without_metadata(review.old):
        refuse_invalid(review, check_controller_deployment(review.object))
    return []


def _without_metadata(obj: Object) -> Object:
    """The fields of an object that has no spec, and its annotations, which may hold fields of another version."""
    return {**obj, "metadata": obj["metadata"].get("annotations")}


async def validate_controller_registration(review: Review, garden: Garden) -> list[str]:
    """The ControllerDeployments that it names must exist."""
    if review.object is None or review.deleting or not review.spec_changed:
        return []
    faults, known = Faults(), _deployments(review.old)
    for index, name in enumerate(_deployments(review.object)):
        if name not in known and not await garden.find(resources.CONTROLLER_DEPLOYMENT, name):
            path = Path("spec.deployment.deploymentRefs") @ index / "name"
            faults.not_found(path, name, "there is no such ControllerDeployment")
    refuse_forbidden(review, faults)
    return []


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
}
"""Handlers of creations and updates, which set defaults. The webhook rules are made from these tables."""
VALIDATORS: dict[Resource, Validate] = {
    resources.SHOOT: validate_shoot,
    resources.PROJECT: validate_project,
    resources.SEED: validate_seed,
    resources.CLOUD_PROFILE: validate_cloud_profile,
    resources.NAMESPACED_CLOUD_PROFILE: validate_namespaced_cloud_profile,
    resources.QUOTA: validate_quota,
    resources.SECRET_BINDING: validate_binding,
    resources.SHOOT_STATE: validate_shoot_state,
    resources.CORE_BACKUP_BUCKET: validate_backup_bucket,
    resources.CREDENTIALS_BINDING: validate_binding,
    resources.WORKLOAD_IDENTITY: validate_workload_identity,
    resources.OPERATIONS_BASTION: validate_bastion,
    resources.EXPOSURE_CLASS: warn_of_exposure_class,
    # Both versions, so that the author of an object is told the faults by the names of the fields that it wrote.
    resources.CONTROLLER_DEPLOYMENT: validate_controller_deployment,
    resources.CONTROLLER_DEPLOYMENT_V1BETA1: validate_controller_deployment,
    resources.CONTROLLER_REGISTRATION: validate_controller_registration,
}
"""Handlers of creations, updates and deletions."""
REFERENCE_VALIDATORS: dict[Resource, Validate] = {
    resources.CONFIG_MAP: validate_reference,
    resources.SECRET: validate_reference,
}
"""Handlers of creations and updates of objects that Shoots name, in namespaces of Projects only."""
DELETION_VALIDATORS: dict[Resource, Validate] = {resources.NAMESPACE: validate_project_namespace}
"""Handlers of deletions only; of namespaces, only those of Projects."""
