"""The webhook server: AdmissionReviews in, verdicts and patches out."""

import json
from base64 import b64encode
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from tests.unit.admission.webhooks import BINDING, SECRET, ask, patched
from tests.unit.api.shoots import PROJECT, REGISTRATION, SEED, SHOOT, changed, complete
from workers.admission.webhooks import webhook_configurations
from workers.lib.reviews import patch

REPOSITORY = {"ref": "registry.example.org/charts/local:v1", "pullSecretRef": {"name": "pull"}}


async def test_a_shoot_is_completed_and_then_accepted(client):
    shoot = changed(SHOOT, "spec.monitoring.alerting.emailReceivers", ["a@example.org"])
    response = await ask(client, "/mutate", "CREATE", shoot)
    stored = patched(shoot, response)
    assert stored["spec"]["provider"]["workers"][0]["machine"]["image"] == {"name": "local", "version": "1.1.0"}
    accepted = await ask(client, "/validate", "CREATE", stored)
    assert accepted["allowed"]
    assert "this garden sends no mails" in accepted["warnings"][0]
    again = await ask(client, "/mutate", "UPDATE", stored, stored)
    assert "patch" not in again, "what is complete is not touched"


@pytest.mark.parametrize(("way", "warned"), [("smtp", False), ("none", True)])
async def test_only_a_mail_server_sends_mails(client, garden, way: str, warned: bool):
    labels = {"gardener.cloud/role": "alerting"}
    metadata = {"name": "alerting", "namespace": "garden", "labels": labels}
    data = {"auth_type": b64encode(way.encode()).decode()}
    garden.objects.append({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})
    shoot = complete("spec.monitoring.alerting.emailReceivers", ["a@example.org"]).to_wire()
    accepted = await ask(client, "/validate", "CREATE", shoot)
    assert accepted["allowed"]
    assert ("this garden sends no mails" in str(accepted.get("warnings"))) == warned


ISSUER = "authentication.gardener.cloud/issuer"
ISSUER_HOST = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {
        "name": "issuer",
        "namespace": "garden",
        "labels": {"gardener.cloud/role": "shoot-service-account-issuer"},
    },
}


def with_issuer(value: str = "managed") -> dict[str, Any]:
    shoot = complete().to_wire()
    shoot["metadata"].setdefault("annotations", {})[ISSUER] = value
    return dict(shoot)


async def refusal(client: TestClient[Any, Any], *objects: dict[str, Any]) -> str:
    response = await ask(client, "/validate", "UPDATE" if objects[1:] else "CREATE", *objects)
    assert response["status"]["code"] == 403
    return str(response["status"]["message"])


async def test_a_managed_issuer_needs_a_garden_that_has_one(client, garden):
    garden.objects.append({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "other", "namespace": "garden"}})
    assert "this garden has no managed issuer" in await refusal(client, with_issuer())
    garden.objects.append(ISSUER_HOST)
    assert (await ask(client, "/validate", "CREATE", with_issuer()))["allowed"]
    garden.objects.remove(ISSUER_HOST)
    assert (await ask(client, "/validate", "UPDATE", with_issuer(), with_issuer()))["allowed"], "it has it already"


async def test_a_managed_issuer_stays_and_is_the_only_one(client, garden):
    garden.objects.append(ISSUER_HOST)
    assert "must stay managed" in await refusal(client, complete().to_wire(), with_issuer())
    assert "must stay managed" in await refusal(client, with_issuer("other"), with_issuer())
    both = changed(with_issuer(), "spec.kubernetes.kubeAPIServer.serviceAccountConfig.issuer", "https://me.example.org")
    assert "take one of them out" in await refusal(client, both)


async def test_choosing_a_seed_needs_a_right_of_its_own(client, garden):
    """Seeds cost; the scheduler and operators choose them."""
    wanted = complete("spec.seedName", "seed-1", bound=True).to_wire()
    assert (await ask(client, "/validate", "CREATE", wanted))["allowed"]
    garden.denied.add(("update", "shoots/binding"))
    response = await ask(client, "/validate", "CREATE", wanted)
    assert response["status"]["code"] == 403
    assert "user alice may not update shoots/binding" in response["status"]["message"]


async def test_a_control_plane_does_not_move_until_its_lost_seed_is_clean(client, garden):
    """The seed that comes back is to find where it looks that the cluster is elsewhere."""
    old = complete("spec.seedName", "seed-1", bound=True).to_wire()
    last = {"type": "Restore", "state": "Succeeded"}
    old["status"] = {"seedName": "seed-1", "technicalID": "shoot--local--demo", "uid": "u-1", "lastOperation": last}
    left = {"name": "source-shoot--local--demo--u-1", "namespace": old["metadata"]["namespace"]}
    garden.objects.append(
        {
            "apiVersion": "core.gardener.cloud/v1beta1",
            "kind": "BackupEntry",
            "metadata": left,
            "spec": {"bucketName": "uid-of-seed-3"},
        }
    )
    response = await ask(client, "/validate", "UPDATE", changed(old, "spec.seedName", "seed-2"), old)
    assert "wait until it has" in response["status"]["message"]


async def test_another_seed_is_validated_alone_if_nothing_was_created(client, garden):
    """Without a status nothing can be left anywhere."""
    old = complete("spec.seedName", "seed-1", bound=True).to_wire()
    garden.objects.append(changed(SEED, "metadata.name", "seed-2"))
    response = await ask(client, "/validate", "UPDATE", changed(old, "spec.seedName", "seed-2"), old)
    assert "seed seed-2 is not ready" in response["status"]["message"]


async def test_faults_of_the_object_are_invalid_and_of_its_surroundings_forbidden(client, garden):
    bad = complete("spec.provider.workers.0.minimum", 7).to_wire()
    assert (await ask(client, "/validate", "CREATE", bad))["status"]["code"] == 422
    garden.objects.remove(BINDING)
    response = await ask(client, "/validate", "CREATE", complete().to_wire())
    assert response["status"]["code"] == 403
    assert 'credentialsBindingName: Not found: "local"' in response["status"]["message"]


async def test_an_object_that_breaks_its_schema_is_left_to_the_schema(client):
    response = await ask(client, "/mutate", "CREATE", changed(SHOOT, "spec.provider.workers.0.minimum", "1"))
    assert response == {"uid": "r-1", "allowed": True}


async def test_a_spec_in_deletion_is_fixed_but_its_finalizers_are_not(client):
    old = changed(complete().to_wire(), "metadata.deletionTimestamp", "2026-11-21T12:00:00Z")
    old["metadata"]["finalizers"] = ["gardener"]
    assert (await ask(client, "/validate", "UPDATE", changed(old, "metadata.finalizers", []), old))["allowed"]
    response = await ask(client, "/validate", "UPDATE", changed(old, "spec.purpose", "testing"), old)
    assert "is being deleted" in response["status"]["message"]


async def test_an_annotation_is_written_though_surroundings_have_changed(client, garden):
    """Retrying must be possible while something is broken."""
    old = complete().to_wire()
    garden.objects = []
    new = changed(
        old, "metadata.annotations", old["metadata"]["annotations"] | {"gardener.cloud/operation": "reconcile"}
    )
    assert (await ask(client, "/validate", "UPDATE", new, old))["allowed"]


@pytest.mark.parametrize("kind", ["Shoot", "Project", "ShootState"])
async def test_deletions_need_confirmation(client, kind):
    subject = {"apiVersion": "core.gardener.cloud/v1beta1", "kind": kind, "metadata": {"name": "x", "annotations": {}}}
    if kind != "Project":
        subject["metadata"]["namespace"] = "garden-local"
    response = await ask(client, "/validate", "DELETE", None, subject)
    assert "confirmation.gardener.cloud/deletion=true" in response["status"]["message"]
    subject["metadata"]["annotations"] = {"confirmation.gardener.cloud/deletion": "true"}
    assert (await ask(client, "/validate", "DELETE", None, subject))["allowed"]


async def test_a_seed_with_shoots_cannot_be_deleted(client, garden):
    seed = changed(SEED, "metadata.uid", "5eed")
    garden.objects[garden.objects.index(SEED)] = seed
    assert (await ask(client, "/validate", "DELETE", None, seed))["allowed"]
    garden.objects.append(changed(SHOOT, "spec.seedName", "seed-1"))
    response = await ask(client, "/validate", "DELETE", None, seed)
    assert "garden-local/demo" in response["status"]["message"]


async def test_a_binding_keeps_its_finalizer_while_shoots_use_it(client, garden):
    """A user may delete it, but not remove its finalizer."""
    held = changed(BINDING, "metadata.finalizers", ["gardener"])
    assert (await ask(client, "/validate", "UPDATE", BINDING, held))["allowed"]
    garden.objects.append(SHOOT)
    assert (await ask(client, "/validate", "DELETE", None, held))["allowed"]
    response = await ask(client, "/validate", "UPDATE", BINDING, held)
    assert "garden-local/demo" in response["status"]["message"]


async def test_binding_a_secret_needs_the_right_to_read_it(client, garden):
    """A binding would be a way to use credentials that one may not see."""
    assert (await ask(client, "/validate", "CREATE", BINDING))["allowed"]
    garden.denied.add(("get", "secrets"))
    response = await ask(client, "/validate", "CREATE", BINDING)
    assert "user alice may not get Secret garden-local/local" in response["status"]["message"]
    garden.objects.remove(SECRET)
    assert (await ask(client, "/validate", "CREATE", BINDING))["status"] == response["status"], "it tells a stranger"
    garden.denied.clear()
    assert "there is no such Secret" in (await ask(client, "/validate", "CREATE", BINDING))["status"]["message"]


async def test_a_binding_names_quotas_that_exist(client):
    """Otherwise a misspelt name would limit nothing."""
    bound = changed(BINDING, "quotas", [{"namespace": "garden-local", "name": "trial"}])
    response = await ask(client, "/validate", "CREATE", bound)
    assert 'quotas[0]: Not found: "garden-local/trial": there is no such Quota' in response["status"]["message"]


async def test_a_projects_namespace_is_deleted_only_with_its_project(client, garden):
    """Kubernetes would delete every Shoot and credential in it at once."""
    labels = {"gardener.cloud/role": "project", "project.gardener.cloud/name": "local"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "garden-local", "labels": labels}}
    response = await ask(client, "/validate", "DELETE", None, namespace)
    assert "delete the Project instead" in response["status"]["message"]
    going = changed(PROJECT, "metadata.deletionTimestamp", "2026-11-21T12:00:00Z")
    garden.objects[garden.objects.index(PROJECT)] = going
    assert (await ask(client, "/validate", "DELETE", None, namespace))["allowed"]
    garden.objects.append(SHOOT)
    response = await ask(client, "/validate", "DELETE", None, namespace)
    assert "still has Shoots: garden-local/demo" in response["status"]["message"]


async def test_a_seed_has_only_extensions_that_support_seeds(client, garden):
    served = {"kind": "Extension", "type": "audit", "primary": True}
    garden.objects.append(changed(changed(REGISTRATION, "metadata.name", "audit"), "spec.resources", [served]))
    wanted = changed(SEED, "spec.extensions", [{"type": "audit"}])
    assert "supports seeds: []" in (await ask(client, "/validate", "CREATE", wanted))["status"]["message"]

    del garden.objects[-1]
    served = {**served, "clusterCompatibility": ["shoot", "seed"]}
    garden.objects.append(changed(changed(REGISTRATION, "metadata.name", "audit"), "spec.resources", [served]))
    garden.objects.append({"kind": "Secret", "metadata": {"name": "dns", "namespace": "garden"}})
    assert (await ask(client, "/validate", "CREATE", wanted))["allowed"]


async def test_a_binding_means_its_own_namespace(client):
    short = changed(BINDING, "credentialsRef.namespace")
    response = await ask(client, "/mutate", "CREATE", short)
    assert patched(short, response)["credentialsRef"]["namespace"] == "garden-local"


async def test_a_seed_whose_secrets_are_missing_is_refused(client, garden):
    response = await ask(client, "/validate", "CREATE", SEED)
    assert 'spec.dns.internal.credentialsRef: Not found: "garden/dns"' in response["status"]["message"]
    garden.objects.append({"kind": "Secret", "metadata": {"name": "dns", "namespace": "garden"}})
    assert (await ask(client, "/validate", "CREATE", SEED))["allowed"]


OPERATION = "gardener.cloud/operation"


def asking(operation):
    return changed(SEED, "metadata.annotations", {OPERATION: operation} if operation else {})


@pytest.mark.parametrize(
    ("before", "operation", "said"),
    [
        ("", "reconcile", ""),
        ("", "renew-kubeconfig", ""),
        ("reconcile", "reconcile", ""),
        ("", "renew-garden-access-secrets", "has no effect: extensions of a seed have no access to the garden"),
        ("", "renew-workload-identity-tokens", ""),
        ("", "rotate-ca-start", 'supported values: "reconcile", "retry", "renew-kubeconfig"'),
        ("reconcile", "renew-kubeconfig", "reconcile was requested before and is not done yet"),
    ],
)
async def test_a_seed_accepts_known_operations_only(client, before, operation, said):
    """A request of an unknown operation would wait for ever."""
    response = await ask(client, "/validate", "UPDATE", asking(operation), asking(before))
    assert response["allowed"] is not bool(said)
    assert said in response.get("status", {}).get("message", "")


async def test_plain_text_of_an_internal_secret_is_encoded(client):
    secret = {
        "apiVersion": "core.gardener.cloud/v1beta1",
        "kind": "InternalSecret",
        "metadata": {"name": "x", "namespace": "garden-local"},
        "data": {"a": "YQ=="},
        "stringData": {"b": "b"},
    }
    stored = patched(secret, await ask(client, "/mutate", "CREATE", secret))
    assert stored["data"] == {"a": "YQ==", "b": "Yg=="}
    assert "stringData" not in stored


def test_a_patch_touches_only_what_changed():
    """Or field ownership and generation of everything else would suffer."""
    before = {"metadata": {"name": "x", "labels": {"a": "1"}}, "spec": {"a": 1}, "status": {"s": 1}}
    after = {"metadata": {"name": "x", "labels": {"a": "2"}}, "spec": {"a": 1}}
    assert patch(before, after) == [
        {"op": "add", "path": "/metadata/labels", "value": {"a": "2"}},
        {"op": "remove", "path": "/status"},
    ]
    assert patch(before, before) == []


def test_the_rules_of_the_webhooks_name_the_kinds_that_have_handlers():
    mutating, validating = webhook_configurations("https://198.18.0.1:9443", "Q0E=")
    assert mutating["webhooks"][0]["rules"] == [
        {
            "apiGroups": ["core.gardener.cloud"],
            "apiVersions": ["v1beta1"],
            "operations": ["CREATE", "UPDATE"],
            "resources": [
                *("shoots", "projects", "seeds", "cloudprofiles", "namespacedcloudprofiles", "secretbindings"),
                "internalsecrets",
            ],
        },
        {
            "apiGroups": ["security.gardener.cloud"],
            "apiVersions": ["v1alpha1"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["credentialsbindings", "workloadidentities"],
        },
        {
            "apiGroups": ["operations.gardener.cloud"],
            "apiVersions": ["v1alpha1"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["bastions"],
        },
        {
            "apiGroups": ["seedmanagement.gardener.cloud"],
            "apiVersions": ["v1alpha1"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["managedseeds"],
        },
    ]
    assert [
        (each["name"], each["rules"][0]["resources"], each["rules"][0]["operations"])
        for each in validating["webhooks"][:2]
    ] == [
        (
            "validate.admission.gardener.cloud",
            [
                *("shoots", "projects", "seeds", "cloudprofiles", "namespacedcloudprofiles", "exposureclasses"),
                *("quotas", "secretbindings", "shootstates", "backupbuckets", "backupentries", "plants"),
                *("controllerdeployments", "controllerregistrations", "controllerinstallations"),
            ],
            ["CREATE", "UPDATE", "DELETE"],
        ),
        ("project-namespaces.admission.gardener.cloud", ["namespaces"], ["DELETE"]),
    ]


def test_the_configurations_fail_closed_and_are_quick():
    mutating, validating = webhook_configurations("https://198.18.0.1:9443", "Q0E=")
    assert mutating["webhooks"][0]["clientConfig"] == {"url": "https://198.18.0.1:9443/mutate", "caBundle": "Q0E="}
    assert "DELETE" in validating["webhooks"][0]["rules"][0]["operations"]
    assert {each["webhooks"][0]["failurePolicy"] for each in (mutating, validating)} == {"Fail"}


def test_whole_numbers_are_written_without_a_fraction():
    """The API server takes -1.0 for another value than the -1 it has stored, and raises the generation."""
    [change] = patch({}, {"spec": {"rates": [-1.0, 0.5], "nested": {"limit": 2.0}}})

    assert json.dumps(change["value"]) == '{"rates": [-1, 0.5], "nested": {"limit": 2}}'


async def test_repairing_an_operation_needs_a_right_of_its_own(client, garden):
    """A user that skips a task decides that the cluster works without it; owners cannot know that."""
    stored = complete(bound=True).to_wire()
    wanted = complete(bound=True).to_wire()
    wanted["metadata"]["annotations"]["repair.shoot.gardener.cloud/skip"] = "wait_worker:it is broken"
    assert (await ask(client, "/validate", "UPDATE", wanted, stored))["allowed"]
    garden.denied.add(("repair", "shoots"))
    response = await ask(client, "/validate", "UPDATE", wanted, stored)
    assert response["status"]["code"] == 403
    assert "user alice may not repair shoots; operators may" in response["status"]["message"]
    assert (await ask(client, "/validate", "UPDATE", wanted, wanted))["allowed"], "it is there already"
    assert (await ask(client, "/validate", "UPDATE", stored, wanted))["allowed"], "taking it away repairs nothing"


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("skip", "wait_worker", "must have the form TASK:REASON"),
        ("skip", "wait_worker:", "skip needs a reason"),
        ("reset", ":because", "reset needs the name of a task"),
        ("cancel", "", "cancel needs a reason"),
        ("provide", "wait_worker:ok", 'must have the form {"task"'),
    ],
)
async def test_incomplete_repairs_are_refused(client, name, text, fault):
    stored, wanted = complete(bound=True).to_wire(), complete(bound=True).to_wire()
    wanted["metadata"]["annotations"][f"repair.shoot.gardener.cloud/{name}"] = text
    response = await ask(client, "/validate", "UPDATE", wanted, stored)
    assert response["status"]["code"] == 422
    assert f"metadata.annotations[repair.shoot.gardener.cloud/{name}]" in response["status"]["message"]
    assert fault in response["status"]["message"]


CONFIRMED, CONFIRMED_BY = "confirmation.gardener.cloud/deletion", "deletion.gardener.cloud/confirmed-by"
ROBOT = "system:serviceaccount:garden-local:robot"


@pytest.mark.parametrize(
    ("approval", "labels", "confirmed_by", "user", "allowed"),
    [
        ({"selector": {}}, {}, "alice", "alice", False),
        ({"selector": {}}, {}, "bob", "alice", True),
        ({"selector": {}}, {}, None, "alice", False),
        ({"selector": {"matchLabels": {"stage": "live"}}}, {"stage": "live"}, "alice", "alice", False),
        ({"selector": {"matchLabels": {"stage": "live"}}}, {"stage": "test"}, "alice", "alice", True),
        ({"selector": {}}, {}, ROBOT, ROBOT, False),
        ({"selector": {}, "includeServiceAccounts": False}, {}, ROBOT, ROBOT, True),
        ({"selector": {}, "includeServiceAccounts": False}, {}, "alice", "alice", False),
    ],
)
async def test_a_deletion_needs_two_users_where_the_project_says_so(
    client, garden, approval, labels, confirmed_by, user, allowed
):
    approvals = [{"resource": "shoots", **approval}]
    garden.objects[garden.objects.index(PROJECT)] = changed(PROJECT, "spec.dualApprovalForDeletion", approvals)
    annotations = {CONFIRMED: "true", **({CONFIRMED_BY: confirmed_by} if confirmed_by else {})}
    shoot = changed(changed(SHOOT, "metadata.annotations", annotations), "metadata.labels", labels)

    response = await ask(client, "/validate", "DELETE", None, shoot, user=user)

    assert response["allowed"] is allowed
    if not allowed:
        assert "another user must delete it" in response["status"]["message"]


@pytest.mark.parametrize("path", ["spec.resources", "spec.dns", "spec.kubernetes.kubeAPIServer"])
async def test_a_shoot_refers_only_to_what_its_author_may_read(client, garden, path):
    """Extensions and the control plane read it: a user without the right to read Secrets would use one."""
    reference = {"kind": "Secret", "apiVersion": "v1", "name": "local"}
    value = {
        "spec.resources": [{"name": "mine", "resourceRef": reference}],
        "spec.dns": {"providers": [{"type": "unmanaged", "credentialsRef": reference}]},
        "spec.kubernetes.kubeAPIServer": {
            "admissionPlugins": [
                {"name": "ImagePolicyWebhook", "kubeconfigSecretName": "local", "config": {"imagePolicy": {}}}
            ]
        },
    }[path]
    before, after = SHOOT, changed(SHOOT, path, value)
    garden.denied.add(("get", "secrets"))

    response = await ask(client, "/validate", "UPDATE", after, before)
    assert "user alice may not get Secret garden-local/local" in response["status"]["message"]
    garden.objects.remove(SECRET)
    assert (await ask(client, "/validate", "UPDATE", after, before))["status"] == response["status"]

    again = changed(after, "spec.region", "mars")
    message = (await ask(client, "/validate", "UPDATE", again, after)).get("status", {}).get("message", "")
    assert "may not get" not in message, "the reference was there before"


async def test_a_shoot_gets_other_credentials_only_by_a_user_who_may_read_both(client, garden):
    """The Secret may be another Project's; the answer does not say where it is."""
    other = changed(changed(BINDING, "metadata.name", "other"), "credentialsRef.namespace", "garden-far")
    garden.objects += [other, changed(SECRET, "metadata.namespace", "garden-far")]
    after = changed(SHOOT, "spec.credentialsBindingName", "other")
    garden.denied.add(("get", "secrets"))

    message = (await ask(client, "/validate", "UPDATE", after, SHOOT))["status"]["message"]

    assert "user alice may not get the credentials of CredentialsBinding local" in message
    assert "garden-far" not in message
    created = (await ask(client, "/validate", "CREATE", SHOOT)).get("status", {}).get("message", "")
    assert "may not get" not in created, "operators share credentials by bindings"


@pytest.mark.parametrize(
    ("verb", "path", "value"),
    [
        ("manage-members", "spec.members", [{"kind": "User", "name": "eve", "role": "viewer"}]),
        ("manage-members", "spec.owner", {"kind": "User", "name": "alice"}),
        ("modify-spec-tolerations-whitelist", "spec.tolerations", {"whitelist": [{"key": "a"}]}),
    ],
)
async def test_a_field_of_a_project_needs_its_verb(client, garden, verb, path, value):
    after = changed(PROJECT, path, value)
    assert (await ask(client, "/validate", "UPDATE", after, PROJECT))["allowed"]
    garden.denied.add((verb, "projects"))

    message = (await ask(client, "/validate", "UPDATE", after, PROJECT))["status"]["message"]

    assert f"user alice may not {verb} projects" in message
    assert (await ask(client, "/validate", "UPDATE", changed(PROJECT, "spec.purpose", "x"), PROJECT))["allowed"]


async def test_the_spec_of_a_project_does_not_change_in_its_deletion(client):
    going = changed(PROJECT, "metadata.deletionTimestamp", "2026-11-21T12:00:00Z")

    response = await ask(client, "/validate", "UPDATE", changed(going, "spec.purpose", "x"), going)

    assert "being deleted" in response["status"]["message"]


async def test_a_namespace_that_exists_is_adopted_only_by_a_user_who_may_change_it(client, garden):
    """An earlier Project may have left its Secrets in it."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "garden-old"}}
    project = changed(changed(PROJECT, "metadata.name", "old"), "spec.namespace", "garden-old")
    garden.denied |= {("update", "namespaces"), ("manage-members", "projects")}
    project["spec"]["owner"] = {"kind": "User", "name": "alice"}
    assert (await ask(client, "/validate", "CREATE", project))["allowed"]
    garden.objects.append(namespace)

    response = await ask(client, "/validate", "CREATE", project)

    assert "user alice may not update Namespace garden-old" in response["status"]["message"]


async def test_a_registration_names_controller_deployments_that_exist(client, garden):
    """Otherwise no seed would get the extension, and no message would say why."""
    named = changed(REGISTRATION, "spec.deployment", {"deploymentRefs": [{"name": "chart"}]})
    response = await ask(client, "/validate", "CREATE", named)
    assert 'deploymentRefs[0].name: Not found: "chart": there is no such' in response["status"]["message"]
    assert (await ask(client, "/validate", "UPDATE", changed(named, "spec.resources", []), named))["allowed"]
    garden.objects.append({"kind": "ControllerDeployment", "metadata": {"name": "chart"}})
    assert (await ask(client, "/validate", "CREATE", named))["allowed"]


async def test_a_kind_and_type_has_one_primary_registration(client, garden):
    """Two controllers would write the status of the same objects."""
    resources_of = REGISTRATION["spec"]["resources"]
    second = changed(REGISTRATION, "metadata.name", "second")
    response = await ask(client, "/validate", "CREATE", second)
    name, first = REGISTRATION["metadata"]["name"], resources_of[0]
    assert (
        f"spec.resources[0].primary: Forbidden: ControllerRegistration {name} is primary for {first['kind']} of type "
        f"{first['type']}: set primary: false here, or delete the other registration"
    ) in response["status"]["message"]
    secondary = [each | {"primary": False} for each in resources_of]
    assert (await ask(client, "/validate", "CREATE", changed(second, "spec.resources", secondary)))["allowed"]
    assert (await ask(client, "/validate", "UPDATE", changed(REGISTRATION, "spec.deployment", {}), REGISTRATION))[
        "allowed"
    ]


INSTALLATION = {
    "apiVersion": "core.gardener.cloud/v1beta1",
    "kind": "ControllerInstallation",
    "metadata": {"generateName": "ext-"},
    "spec": {"registrationRef": {"name": "ext"}, "seedRef": {"name": "seed-9"}, "deploymentRef": {"name": "chart"}},
}


async def test_an_installation_names_objects_that_exist(client, garden):
    response = await ask(client, "/validate", "CREATE", INSTALLATION)
    for field, name, kind in (
        ("registrationRef", "ext", "ControllerRegistration"),
        ("seedRef", "seed-9", "Seed"),
        ("deploymentRef", "chart", "ControllerDeployment"),
    ):
        why = f'spec.{field}.name: Not found: "{name}": there is no such {kind}'
        assert why in response["status"]["message"]
    for kind, name in (("ControllerRegistration", "ext"), ("Seed", "seed-9"), ("ControllerDeployment", "chart")):
        garden.objects.append({"kind": kind, "metadata": {"name": name}, "spec": {}})
    assert (await ask(client, "/validate", "CREATE", INSTALLATION))["allowed"]


@pytest.mark.parametrize(
    "chart",
    [
        {"apiVersion": "core.gardener.cloud/v1", "helm": {"rawChart": "Tm8gYXJjaGl2ZQ=="}},
        {"apiVersion": "core.gardener.cloud/v1beta1", "type": "helm", "providerConfig": {"chart": "Tm8gYXJjaGl2ZQ=="}},
    ],
    ids=["v1", "v1beta1"],
)
async def test_a_chart_that_helm_cannot_load_is_refused(client, chart):
    deployment = {"kind": "ControllerDeployment", "metadata": {"name": "chart"}, **chart}
    response = await ask(client, "/validate", "CREATE", deployment)
    assert "hart: Invalid value" in response["status"]["message"]
    assert "is no compressed archive: package the chart with helm package" in response["status"]["message"]
    # An object that is stored already can still be labelled.
    labelled = changed(deployment, "metadata.annotations", {"a": "b"})
    assert (await ask(client, "/validate", "UPDATE", labelled, deployment))["allowed"]


@pytest.mark.parametrize(
    "fields",
    [
        {"apiVersion": "core.gardener.cloud/v1", "helm": {"ociRepository": REPOSITORY}},
        {
            "apiVersion": "core.gardener.cloud/v1beta1",
            "type": "helm",
            "providerConfig": {"ociRepository": REPOSITORY},
        },
    ],
)
async def test_a_controller_deployment_names_secrets_that_exist(client, garden, fields):
    """In either version; a fault is told when the object is written, not when a seed pulls the chart."""
    deployment = {"kind": "ControllerDeployment", "metadata": {"name": "chart"}, **fields}
    response = await ask(client, "/validate", "CREATE", deployment)
    assert 'Not found: "pull": there is no such Secret in namespace garden' in response["status"]["message"]
    assert (await ask(client, "/validate", "UPDATE", changed(deployment, "metadata.labels", {}), deployment))["allowed"]
    garden.objects.append({"kind": "Secret", "metadata": {"name": "pull", "namespace": "garden"}})
    assert (await ask(client, "/validate", "CREATE", deployment))["allowed"]
