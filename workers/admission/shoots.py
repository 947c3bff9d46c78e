"""Handlers of Shoots."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime

from api import resources
from api.constants import (
    AUTHENTICATION,
    AUTHENTICATION_ISSUER,
    CHANGED_BY,
    CONTROL_PLANE_MIGRATION,
    GARDEN_NAMESPACE,
    MIGRATION_BAD_CASE,
    RECORD,
    REPAIR_VERB,
    SHOOT_EXPIRATION_TIMESTAMP,
)
from api.core.v1beta1.cloud_profile import CloudProfile
from api.core.v1beta1.controller_registration import ControllerRegistration
from api.core.v1beta1.exposure_class import ExposureClass
from api.core.v1beta1.project import Project
from api.core.v1beta1.seed import Seed
from api.core.v1beta1.shoot import Shoot
from api.decisions import alerting
from api.decisions.issuer import MANAGED, SELECTOR, is_managed
from api.decisions.lifetime import lifetime
from api.decisions.profiles import profile_of, profile_reference, root_of
from api.decisions.seed_ranking import REGION_CONFIG_SELECTOR, distances_from
from api.defaulting.exposure_class import merge_exposure_class
from api.defaulting.shoot import Surroundings, default_shoot, only_bound
from api.meta import KubeObject
from api.names import backup_entry_names
from api.resources import Object, Resource
from api.validation import live_migration
from api.validation.binding import check_move, check_while_moving, is_moving
from api.validation.field import Faults, Path
from api.validation.garden import domains_of_seed
from api.validation.live_migration import check_annotations, check_live_move
from api.validation.operations import (
    check_deletion_confirmed,
    check_dual_approval,
    check_expiration,
    check_finalizer_kept,
    check_operations,
    check_repairs,
    new_repairs,
)
from api.validation.references import ProfileChange, World, check_references, needed_extensions, references
from api.validation.shoot import check_shoot
from api.validation.warnings import warnings
from api.validation.workload_identity import check_target_type
from workers.admission.domains import default_domains_above, domains_of, overlapping
from workers.admission.indexes import (
    REGISTRATIONS_BY_KIND,
    SEEDS_BELOW_DOMAIN,
    SEEDS_BY_DOMAIN,
    SHOOTS_BELOW_DOMAIN,
    SHOOTS_BY_DOMAIN,
    SHOOTS_BY_SEED,
)
from workers.admission.logins import check_shoot as check_logins
from workers.admission.managed_seeds import check_no_seed, check_seed_shoot_change
from workers.admission.projects import control_plane, project_of
from workers.admission.protection import is_controller
from workers.admission.quotas import check_quotas, quotas_of
from workers.admission.review import (
    Garden,
    Refusal,
    Review,
    refuse_forbidden,
    refuse_invalid,
)
from workers.admission.rights import require, require_for_shoot
from workers.admission.switches import check_binding_switch

_BINDING = replace(resources.SHOOT, plural="shoots/binding")
_AUTHORS = Resource(AUTHENTICATION, "v1alpha1", "Author", "authors")


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
        default_domains=await default_domains_above(domain, garden),
        binder=binder,
    )
    default_shoot(shoot, old, around)
    if old is None and (exposure_class := await _exposure_class(shoot, garden)) is not None:
        refuse_forbidden(review, merge_exposure_class(shoot, exposure_class))
    return shoot.to_wire()


async def _exposure_class(shoot: Shoot, garden: Garden) -> ExposureClass | None:
    name = shoot.spec.exposure_class_name
    found = await garden.find(resources.EXPOSURE_CLASS, name) if name else None
    return ExposureClass.of(found) if found else None


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
        await check_no_seed(review, garden)
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
    await _check_live(review, shoot, old, garden)
    await _check_issuer(review, shoot, old, garden)
    if not review.spec_changed:
        return []
    if review.deleting:
        raise Refusal.forbidden(review, "spec: the Shoot is being deleted, its spec cannot be changed")
    if old is not None and is_moving(old):
        await _check_move_undisturbed(review, shoot, old, garden)
    project = await _project_of(review.namespace, garden)
    refuse_invalid(review, check_shoot(shoot, old, project.metadata.name if project else None))
    await check_seed_shoot_change(review, shoot, old, garden)
    await _check_seed_choice(review, shoot, old, garden)
    await require_for_shoot(review, garden, shoot, old)
    await _check_dns_identities(review, shoot, old, garden)
    await _check_exposure_class(review, shoot, old, garden)
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


async def _check_exposure_class(review: Review, shoot: Shoot, old: Shoot | None, garden: Garden) -> None:
    """A Shoot keeps its ExposureClass: its users reach the API server by the load balancer of the class's handler."""
    name, path = shoot.spec.exposure_class_name, Path("spec") / "exposureClassName"
    faults = Faults()
    if old is not None:
        faults.fixed(path, old.spec.exposure_class_name, name)
        refuse_invalid(review, faults)
        return
    found = await _exposure_class(shoot, garden)
    if name and found is None:
        faults.not_found(path, name, "there is no such ExposureClass")
    elif found is not None and found.metadata.deletion_timestamp:
        faults.forbidden(path, f"ExposureClass {name} is being deleted: choose another one")
    refuse_forbidden(review, faults)


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
        distance = await _distance(shoot, source, destination, garden)
        refuse_forbidden(review, check_live_move(shoot, source, destination, distance))


async def _check_live(review: Review, shoot: Shoot, old: Shoot | None, garden: Garden) -> None:
    """A user who says how a control plane moves needs the right to move it."""
    names = live_migration.changed(shoot, old)
    if not names:
        return
    refuse_forbidden(review, check_annotations(shoot, old, offered=garden.live_migration))
    field = f"metadata.annotations[{names[0]}]"
    await require(review, garden, field, "update", _BINDING, review.namespace, review.name)


async def _distance(shoot: Shoot, source: Seed | None, destination: Seed | None, garden: Garden) -> int | None:
    """Distance between the regions of two seeds, as an operator has given it; None if it is unknown."""
    if source is None or destination is None or not live_migration.is_wanted(shoot):
        return None
    here, there = source.spec.provider.region, destination.spec.provider.region
    if here == there:
        return 0
    profile = await _profile(shoot, garden)
    regions = await garden.list(resources.CONFIG_MAP, GARDEN_NAMESPACE, labels=REGION_CONFIG_SELECTOR)
    try:
        return distances_from(regions, profile.metadata.name if profile else "", here).get(there)
    except ValueError:
        return None


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
        f"spec.seedName: the source seed (bucket {entry['spec']['bucketName']}) of the last move has not deleted its "
        "remains of the control plane, or not revoked the key of its bucket: wait until it has; if it never comes "
        f"back, delete BackupEntry {entry['metadata']['name']} and remove its finalizers",
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
        default_domains=await default_domains_above(domain, garden),
        other_domains=domains_of(
            each
            for each in await overlapping(domain, SHOOTS_BY_DOMAIN, SHOOTS_BELOW_DOMAIN, garden)
            if each["metadata"].get("uid") != shoot.metadata.uid
        ),
        seed_domains=frozenset(
            each
            for seed in await overlapping(domain, SEEDS_BY_DOMAIN, SEEDS_BELOW_DOMAIN, garden)
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
