"""Each rejection of docs/spec/api-core.md 10.1 and 10.2 has a test; this table names it.

A new row or clause of the specification fails here until a test covers it.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from api.core.v1beta1.shoot import Shoot
from api.validation.shoot import check_shoot
from tests.unit.api.shoots import changed, complete

ROOT = Path(__file__).parents[3]
_SPEC = ROOT / "docs" / "spec" / "api-core.md"

SHOOT = "tests/unit/api/test_shoot_validation.py::"
NODES = "tests/unit/api/test_node_settings.py::"
VERSIONED = "tests/unit/api/test_versioned.py::"
SERVER = "tests/unit/admission/test_server.py::"
MANAGED_SEEDS = "tests/unit/admission/test_managed_seeds.py::"
INDEXES = "tests/unit/admission/test_indexes.py::"
GARDEN = "tests/unit/api/test_garden_validation.py::"
MOVES = "tests/unit/api/test_binding.py::"
ROTATION = "tests/unit/api/test_rotation.py::"
HELD = "tests/unit/garden_controllers/test_references.py::test_deletions_wait_for_the_last_shoot"

FIELD = f"{SHOOT}test_an_invalid_field_is_named_with_the_fault"
REFERENCE = f"{SHOOT}test_references_that_do_not_exist_or_fit_are_refused"
FIXED = f"{SHOOT}test_immutable_fields_cannot_change"
VALUE = f"{NODES}test_a_value_that_a_component_would_refuse_is_refused_when_it_is_written"
UNSUITABLE = f"{MOVES}test_a_move_to_an_unsuitable_seed_is_refused"
KUBELET_FITS = f"{SHOOT}test_an_upgrade_needs_a_machine_image_that_knows_the_new_kubelet"
BY_HAND = f"{SHOOT}test_a_seed_chosen_by_hand_must_fit_too"
SEED_FITS = "tests/unit/api/test_scheduling.py::test_a_seed_that_does_not_fit_is_left_out"

PROVIDERS = "tests/unit/api/test_rejections.py::test_providers_of_dns_that_contradict_each_other_are_refused"

IN_PLACE = "tests/unit/api/test_in_place_validation.py::"
LOGINS = "tests/unit/api/test_logins.py::"
OF_FILES = "tests/unit/admission/test_logins.py::"
PROTECTED = "tests/unit/admission/test_protection.py::test_a_restricted_object_is_written_by_gardenlets_alone"
QUOTAS = "tests/unit/admission/test_quotas.py::"

NOT_YET = ""
"""Rules that this version does not have. Each is named, so that none is forgotten."""


class Unreachable(str):
    """Test that shows that the only way to a rule is refused, so that the rule could never refuse anything."""


LIVE = "tests/unit/api/test_live_migration.py::"

DOMAINS = "tests/unit/admission/test_domains.py::"
LIMITS = "tests/unit/admission/test_limits.py::"
PROFILES = "tests/unit/admission/test_profiles.py::"
SWITCHES = "tests/unit/admission/test_switches.py::"

COMMON: dict[str, dict[str, str]] = {
    "DELETE (also deletecollection) of Project, Shoot, ShootState": {
        "Annotation `confirmation.gardener.cloud/deletion=true` missing": f"{SERVER}test_deletions_need_confirmation",
    },
    "DELETE Shoot in a Project with dualApprovalForDeletion": {
        "`deletion.gardener.cloud/confirmed-by` equals the requester (ServiceAccounts only if included)": (
            f"{SERVER}test_a_deletion_needs_two_users_where_the_project_says_so"
        ),
    },
    "Any spec change while deletionTimestamp is set": {
        "Immutable in deletion": f"{SERVER}test_a_spec_in_deletion_is_fixed_but_its_finalizers_are_not",
    },
    "Removing finalizer `gardener`": {
        "Shoot: unless lastOperation Delete/Succeeded/100 % (or never reconciled)": (
            f"{SHOOT}test_the_finalizer_falls_only_when_the_cluster_is_gone"
        ),
        "Bindings: while a Shoot refers to them": f"{SERVER}test_a_binding_keeps_its_finalizer_while_shoots_use_it",
    },
    "Reference to a missing object": {
        "Secret, ConfigMap, WorkloadIdentity,": f"{SHOOT}test_a_missing_object_is_named_with_its_namespace",
        "InternalSecret,": f"{SERVER}test_binding_a_secret_needs_the_right_to_read_it",
        "CloudProfile,": REFERENCE,
        "NamespacedCloudProfile,": REFERENCE,
        "Seed,": BY_HAND,
        "binding,": REFERENCE,
        "Quota,": f"{SERVER}test_a_binding_names_quotas_that_exist",
        "ExposureClass,": "tests/unit/admission/test_exposure_classes.py::test_a_class_that_does_not_exist_is_refused",
        "ControllerDeployment": f"{SERVER}test_a_registration_names_controller_deployments_that_exist",
    },
    "Reference without permission": {
        "Binding creator lacks `get` on the credential or quota": (
            f"{SERVER}test_binding_a_secret_needs_the_right_to_read_it"
        ),
        "Shoot editor changing `credentialsBindingName` lacks `get` on old or new credential": (
            f"{SERVER}test_a_shoot_gets_other_credentials_only_by_a_user_who_may_read_both"
        ),
    },
    "Unknown extension type in Shoot, Seed, BackupBucket, BackupEntry": {
        "No primary ControllerRegistration for kind/type (WL: not workerlessSupported)": REFERENCE,
    },
    "DELETE CloudProfile, ExposureClass, Quota, ControllerDeployment, ControllerRegistration, binding in use": {
        "Held by finalizer, not refused": HELD,
    },
    "DELETE Seed": {
        "Shoots have it in spec or status seedName": f"{SERVER}test_a_seed_with_shoots_cannot_be_deleted",
    },
    "DELETE project Namespace": {
        "Only via Project deletion, and not before its Shoots are gone": (
            f"{SERVER}test_a_projects_namespace_is_deleted_only_with_its_project"
        ),
    },
    "DELETE ManagedSeed / Shoot behind a ManagedSeed": {
        "Shoots on the seed / ManagedSeed exists": f"{MANAGED_SEEDS}test_the_shoot_of_a_managed_seed_is_not_deleted"
    },
    "Update/delete of objects labelled `gardener.cloud/update-restriction=true`": {
        "Requester is not a gardenlet": PROTECTED,
    },
    "Create of too large or too many objects": {
        "Operator-configured size": f"{LIMITS}test_an_object_above_its_size_is_refused",
        "and count limits per resource": f"{LIMITS}test_one_object_more_than_allowed_is_refused",
        "(block or log;": f"{LIMITS}test_mode_log_tells_the_operator_alone",
        "exempt subjects)": f"{LIMITS}test_unrestricted_subjects",
    },
    "garden Secret of role internal-domain": {
        "A second one per namespace": f"{DOMAINS}test_a_namespace_has_one_internal_domain",
        "changing the domain while Shoots exist; deletion while Shoots exist": (
            f"{DOMAINS}test_the_internal_domain_stays_while_shoots_exist"
        ),
    },
    "Secret holding `kubeconfig` in a project namespace": {
        "exec or auth-provider plugin, file paths, insecure settings": (
            f"{OF_FILES}test_any_kubeconfig_of_a_project_is_refused_if_it_runs_a_program"
        ),
    },
    "Audit policy, authentication or authorization ConfigMap": {
        "Must decode strictly and validate for every Shoot using it; also checked on Shoot write": (
            f"{OF_FILES}test_a_file_that_a_shoot_names_stays_good"
        ),
        "Authorization webhooks need a matching kubeconfig entry": (
            "tests/unit/api/test_logins.py::test_faults_of_an_authorization_configuration"
        ),
    },
}
OF_SHOOTS: dict[str, dict[str, str]] = {
    "Project": {
        "Namespace belongs to no Project, or the Project is terminating": REFERENCE,
    },
    "Control-plane version": {
        "Downgrade": FIXED,
        "minor skip": FIXED,
        "not in profile": REFERENCE,
        "expired, `unavailable` on create (existing value may stay on update)": (
            f"{SHOOT}test_an_update_is_not_refused_for_unchanged_fields"
        ),
        "preview allowed only if explicit": REFERENCE,
    },
    "Worker version": {
        "Downgrade": FIXED,
        "above CP": FIELD,
        "more than 3 minors below CP": f"{SHOOT}test_kubelets_follow_the_control_plane_by_three_minors_at_most",
        "on in-place pools minor skip": f"{IN_PLACE}test_a_pool_that_is_updated_in_place_skips_no_minor_version",
    },
    "Machine": {
        "Type missing, unusable, wrong architecture, unavailable in zone": REFERENCE,
        "volume type/size": f"{NODES}test_a_volume_has_the_smallest_size_of_its_type",
        "image version missing, expired (new pool or change),": REFERENCE,
        "wrong arch, CRI,": REFERENCE,
        "container runtime,": f"{SHOOT}test_a_machine_image_offers_the_container_runtimes_of_its_pool",
        "kubeletVersionConstraint, capability": KUBELET_FITS,
        "image downgrade (in place always, else when target expired)": REFERENCE,
        "Image version may not be used by a new pool if older than allowed by in-place minVersionForUpdate": (
            f"{IN_PLACE}test_an_image_version_must_be_reachable_in_place"
        ),
    },
    "Region, zones": {
        "Region not in profile": REFERENCE,
        "zones not in region": REFERENCE,
        "new zones only those in profile": REFERENCE,
        "duplicates": FIELD,
    },
    "Nodes": {
        "Sum of minimums above `limits.maxNodesTotal`": REFERENCE,
        "no active pool for system components": FIELD,
        "kubeReserved ≥ machine capacity": f"{NODES}test_resources_reserved_for_daemons_leave_some_for_pods",
    },
    "Networks": {
        "Overlap among nodes/pods/services or with the Seed's (checked once scheduled) or reserved ranges": (
            f"{NODES}test_a_seed_whose_default_networks_overlap_the_shoots_own_is_not_chosen"
        ),
        "ipFamilies unsupported": FIELD,
    },
    "Access restrictions": {"Not offered by region, or not by the seed": REFERENCE},
    "Seed assignment": {
        "Direct change of seedName": f"{SERVER}test_choosing_a_seed_needs_a_right_of_its_own",
        "target deleting, taints not tolerated, no allocatable shoots, profile seedSelector mismatch, "
        "< 3 zones for zone HA, zones missing, restriction mismatch": SEED_FITS,
        "Rescheduling also needs: backup on both seeds, same internal domain, default domain known to target, "
        "only this field changed, not to same seed, no running Migrate/Restore, no deletion during it": UNSUITABLE,
        "Seed in deletion: only deletion confirmation accepted": UNSUITABLE,
    },
    "DNS": {
        "Domain equal to, parent or child of another Shoot's": (
            f"{INDEXES}test_a_domain_that_overlaps_that_of_another_shoot_is_refused"
        ),
        "a default domain must be exactly `<shoot>.<project>.<default>`": (
            f"{INDEXES}test_a_domain_below_a_default_domain_is_that_of_the_shoot"
        ),
        "default domain together with primary provider": f"{INDEXES}test_a_default_domain_has_no_primary_provider",
        "removing or retyping the primary once scheduled": (
            "tests/unit/api/test_rejections.py::test_the_primary_provider_of_dns_stays"
        ),
        "two primaries": PROVIDERS,
        "non-primary without credentials": FIELD,
        "(type, credentials) duplicate": PROVIDERS,
        "primary without domain (unless unmanaged)": PROVIDERS,
    },
    "Hibernation": {
        "`enabled: true` while HibernationPossible is not True, during etcd/SA-key rotation (Preparing/Completing),": (
            f"{SHOOT}test_hibernation_is_refused_if_the_shoot_could_not_wake_up"
        ),
        "with a forbidden maintenance operation,": f"{ROTATION}test_hibernation_is_refused_during_a_rotation",
        "or self-hosted": FIELD,
    },
    "Encryption": {
        "Changing resources/provider during rotation, rollout or hibernation, or both at once": (
            f"{SHOOT}test_the_encryption_config_may_change_only_between_rotations"
        ),
        "`resources` with wildcard or built-in secrets entry": VALUE,
    },
    "Managed issuer": {
        "`authentication.gardener.cloud/issuer=managed` without garden Secret of role "
        "`shoot-service-account-issuer`,": f"{SERVER}test_a_managed_issuer_needs_a_garden_that_has_one",
        "removed later, or with explicit serviceAccountConfig.issuer": (
            f"{SERVER}test_a_managed_issuer_stays_and_is_the_only_one"
        ),
    },
    "Profile switch": {
        "Different root profile, or dropping used entries": (
            f"{PROFILES}test_a_shoot_changes_its_profile_within_one_root_and_keeps_what_it_uses"
        ),
    },
    "Binding switch": {
        "SecretBinding → CredentialsBinding pointing to another Secret": (
            f"{SWITCHES}test_a_credentials_binding_of_another_secret_is_refused"
        ),
        "provider type differs": REFERENCE,
    },
    "Quota": {
        "Requested cpu, gpu, memory, storage.standard, storage.premium, loadbalancer (all Shoots of the scope, workers "
        "at maximum, 1 LB + 1 with nginx) above metrics": f"{QUOTAS}test_each_metric_is_told",
        "on update checked only for new pools, changed machine type, maximum or volume, or nginx switched on": (
            f"{QUOTAS}test_a_change_that_counts_for_nothing_needs_no_profile"
        ),
        "expiration annotation beyond now + min(clusterLifetimeDays)": (
            f"{SHOOT}test_the_expiration_is_extended_within_the_quotas"
        ),
    },
    "Tolerations": {
        "Not in project or global whitelist": f"{SHOOT}test_a_taint_is_tolerated_only_if_operators_allow_it",
    },
    "ManagedSeed shoot": {
        "nginx on, VPA off, nodes CIDR changed, registered zone removed": (
            f"{MANAGED_SEEDS}test_a_shoot_keeps_what_its_control_planes_need"
        )
    },
    "Admission plugins": {
        "Unknown or forbidden plugin for version": f"{VERSIONED}test_admission_plugins_are_those_of_the_version",
        "required one disabled": f"{VERSIONED}test_a_required_plugin_cannot_be_disabled",
        "kubeconfig Secret not in `spec.resources`": f"{LOGINS}test_fields_of_the_shoot",
    },
    "Feature gates, runtimeConfig": {
        "Unknown for version": f"{VERSIONED}test_a_component_does_not_get_a_feature_gate_that_it_does_not_know",
        "locked": f"{VERSIONED}test_feature_gates_are_those_with_which_the_api_server_starts",
        "disabling required APIs": (f"{VERSIONED}test_runtime_config_switches_known_apis_and_none_that_gardener_needs"),
    },
    "Live migration": {
        "Annotation on create": f"{LIVE}test_annotations_that_are_refused",
        "gate off": f"{LIVE}test_a_garden_that_offers_no_live_moves_refuses_each_annotation",
        "not HA": f"{LIVE}test_annotations_that_are_refused",
        "hibernated": f"{LIVE}test_annotations_that_are_refused",
        "other provider/gardenlet version": f"{LIVE}test_seeds_between_which_nothing_moves_live",
        "region distance above threshold (=180 unless annotated) without `allow-distant-regions`": (
            f"{LIVE}test_seeds_between_which_nothing_moves_live"
        ),
    },
    "Pending in-place update": {
        "Pool change unless operation `force-in-place-update`": (
            f"{IN_PLACE}test_a_pool_changes_during_its_update_only_by_force"
        ),
    },
}


def rows(section: str) -> dict[str, str]:
    """The rejections of a section, by trigger or area."""
    text = _SPEC.read_text().partition(f"### {section} ")[2].partition("\n### ")[0]
    text = text.partition("\nOperation annotation")[0]
    cells = (re.split(r"(?<!\\) \| ", line.strip("| ")) for line in text.splitlines() if line.startswith("| "))
    return {first: second for first, second in cells if (first, second) not in _HEADS}


_HEADS = (("Trigger", "Reason"), ("Area", "Rejected"))


@pytest.mark.parametrize(("section", "table"), [("10.1", COMMON), ("10.2", OF_SHOOTS)], ids=("10.1", "10.2"))
def test_each_row_and_clause_of_the_specification_is_in_the_table(section: str, table: dict[str, dict[str, str]]):
    found = rows(section)
    assert found.keys() == table.keys()
    for row, clauses in table.items():
        rest = found[row]
        for clause in clauses:
            assert clause in rest, f"the specification does not say {clause!r} of {row}"
            rest = rest.replace(clause, "", 1)
        assert not re.sub(r"[\s;.,]", "", rest), f"no clause of {row} covers {rest!r}"


@cache
def functions_of(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    found = (each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(found)


@pytest.mark.parametrize(
    ("rule", "test"),
    [
        (f"{row}: {clause}", test)
        for table in (COMMON, OF_SHOOTS)
        for row, clauses in table.items()
        for clause, test in clauses.items()
        if test != NOT_YET
    ],
)
def test_the_test_of_a_rule_exists(rule: str, test: str):
    file, name = test.split("::")
    assert name in functions_of(file), f"no test shows: {rule}"


def provider(**fields: object) -> dict[str, object]:
    return {"type": "local", "credentialsRef": {"apiVersion": "v1", "kind": "Secret", "name": "dns"}} | fields


@pytest.mark.parametrize(
    ("dns", "complaint"),
    [
        (
            {"domain": "a.test", "providers": [provider(primary=True), provider(type="b", primary=True)]},
            "spec.dns.providers: Forbidden: only one provider can be primary",
        ),
        ({"domain": "a.test", "providers": [provider(), provider()]}, "spec.dns.providers[1]: Duplicate value"),
        ({"providers": [provider(primary=True)]}, "spec.dns.domain: Required value: a primary provider needs a domain"),
    ],
)
def test_providers_of_dns_that_contradict_each_other_are_refused(dns, complaint):
    assert complaint in str(check_shoot(complete("spec.dns", dns), None, "local"))


@pytest.mark.parametrize("providers", [[], [provider(type="other", primary=True)]])
def test_the_primary_provider_of_dns_stays(providers):
    """Without it nothing could delete the cluster's records."""
    dns = {"domain": "a.test", "providers": [provider(primary=True)]}
    old = Shoot.of(changed(complete("spec.seedName", "seed-1", bound=True).to_wire(), "spec.dns", dns))
    new = Shoot.of(changed(old.to_wire(), "spec.dns.providers", providers))
    told = str(check_shoot(new, old, "local"))
    assert "spec.dns.providers: Forbidden: the primary provider cannot be removed or change its type" in told
