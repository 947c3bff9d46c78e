"""Objects that others name stay until the last one that names them is gone."""

from typing import Any

from aiohttp import web

from api import resources
from tests.unit.admission.webhooks import BINDING, SECRET
from tests.unit.api.shoots import SEED, SHOOT, changed
from tests.unit.api.test_plants import PLANT
from tests.unit.api.test_quota import quota
from tests.unit.garden_controllers.conftest import CORE, SECURITY
from tests.unit.garden_controllers.test_references import first_list_lacks_shoots, gone, held_by
from tests.unit.kube.waiting import until
from workers.controller_manager.protection import run_protection_controllers
from workers.controller_manager.references import run_reference_controllers

NAMESPACE = "garden-local"
PROTECTION = "gardener.cloud/reference-protection"
TRIAL = [{"namespace": NAMESPACE, "name": "trial"}]


def protecting(garden: Any) -> Any:
    return garden.running(run_protection_controllers(garden.client, garden.caches))


def deleting(obj: Any) -> Any:
    return "deletionTimestamp" in obj["metadata"]


async def test_a_quota_stays_until_no_binding_names_it(garden):
    garden.api.put(f"{CORE}/quotas", quota())
    garden.api.put(f"{SECURITY}/credentialsbindings", changed(BINDING, "quotas", TRIAL))
    label = "reference.gardener.cloud/credentialsbinding"
    async with protecting(garden):
        await garden.becomes(resources.QUOTA, "trial", NAMESPACE, held_by("gardener"))
        await garden.becomes(
            resources.QUOTA, "trial", NAMESPACE, lambda obj: (obj["metadata"].get("labels") or {}).get(label) == "true"
        )
        await garden.client.delete(resources.QUOTA, "trial", NAMESPACE)
        await garden.becomes(resources.QUOTA, "trial", NAMESPACE, deleting)
        garden.api.put(f"{CORE}/quotas", changed(quota(), "metadata.name", "other"))
        await garden.becomes(resources.QUOTA, "other", NAMESPACE, held_by("gardener"))
        assert held_by("gardener")(garden.api.find(f"{CORE}/quotas", "trial", NAMESPACE))
        garden.api.remove(f"{SECURITY}/credentialsbindings", "local", NAMESPACE)
        await garden.becomes(resources.QUOTA, "trial", NAMESPACE, gone)


async def test_the_label_of_a_quota_goes_with_the_last_binding(garden):
    label = "reference.gardener.cloud/secretbinding"
    garden.api.put(f"{CORE}/quotas", changed(quota(), "metadata.labels", {label: "true", "own": "x"}))
    async with protecting(garden):
        await garden.becomes(
            resources.QUOTA, "trial", NAMESPACE, lambda obj: obj["metadata"].get("labels") == {"own": "x"}
        )


async def test_an_exposure_class_stays_until_no_shoot_names_it(garden):
    garden.api.put(f"{CORE}/exposureclasses", {"metadata": {"name": "public"}, "handler": "public"})
    garden.api.put(f"{CORE}/shoots", changed(SHOOT, "spec.exposureClassName", "public"))
    async with protecting(garden):
        await garden.becomes(resources.EXPOSURE_CLASS, "public", None, held_by("gardener"))
        await garden.client.delete(resources.EXPOSURE_CLASS, "public")
        await garden.becomes(resources.EXPOSURE_CLASS, "public", None, deleting)
        garden.api.remove(f"{CORE}/shoots", "demo", NAMESPACE)
        await garden.becomes(resources.EXPOSURE_CLASS, "public", None, gone)


async def test_an_exposure_class_stays_while_a_shoot_names_it_that_the_cache_lacks(garden):
    garden.api.put(f"{CORE}/exposureclasses", {"metadata": {"name": "public", "finalizers": ["gardener"]}})
    garden.api.put(f"{CORE}/shoots", changed(SHOOT, "spec.exposureClassName", "public"))
    lists = first_list_lacks_shoots(garden)
    await garden.client.delete(resources.EXPOSURE_CLASS, "public")
    async with protecting(garden):
        await until(lambda: len(lists) > 2)
        assert held_by("gardener")(garden.api.find(f"{CORE}/exposureclasses", "public"))
        garden.api.remove(f"{CORE}/shoots", "demo", NAMESPACE)
        await garden.becomes(resources.EXPOSURE_CLASS, "public", None, gone)


async def test_a_deployment_is_held_by_its_registration_and_that_by_its_installation(garden):
    deployment = {"metadata": {"name": "chart"}, "helm": {}}
    registration = {"metadata": {"name": "ext"}, "spec": {"deployment": {"deploymentRefs": [{"name": "chart"}]}}}
    installation = {"metadata": {"name": "ext-1"}, "spec": {"registrationRef": {"name": "ext"}}}
    garden.api.put(resources.CONTROLLER_DEPLOYMENT.path(), deployment)
    garden.api.put(f"{CORE}/controllerregistrations", registration)
    garden.api.put(f"{CORE}/controllerinstallations", installation)
    names = (resources.CONTROLLER_DEPLOYMENT, "chart"), (resources.CONTROLLER_REGISTRATION, "ext")
    async with protecting(garden):
        await garden.becomes(*names[0], None, held_by("core.gardener.cloud/controllerdeployment"))
        await garden.becomes(*names[1], None, held_by("core.gardener.cloud/controllerregistration"))
        for each in names:
            await garden.client.delete(*each)
            await garden.becomes(*each, None, deleting)
        garden.api.remove(f"{CORE}/controllerinstallations", "ext-1")
        await garden.becomes(*names[1], None, gone)
        await garden.becomes(*names[0], None, gone)


def put(garden: Any, path: str, name: str, namespace: str = NAMESPACE, finalizer: str = "") -> None:
    metadata: dict[str, Any] = {"name": name, "namespace": namespace}
    garden.api.put(path, {"metadata": metadata | ({"finalizers": [finalizer]} if finalizer else {})})


async def test_objects_that_a_shoot_refers_to_are_held(garden):
    server = {
        "auditConfig": {"auditPolicy": {"configMapRef": {"name": "audit"}}},
        "structuredAuthentication": {"configMapName": "authn"},
        "structuredAuthorization": {
            "configMapName": "authz",
            "kubeconfigs": [{"authorizerName": "a", "secretName": "kc"}],
        },
        "admissionPlugins": [{"name": "A", "kubeconfigSecretName": "plugin"}],
    }
    shoot = changed(SHOOT, "spec.kubernetes.kubeAPIServer", server)
    named = {"apiVersion": "v1", "kind": "Secret", "name": "named"}
    shoot["spec"]["resources"] = [{"name": "a", "resourceRef": named}]
    shoot["spec"]["dns"] = {"providers": [{"type": "local", "credentialsRef": {**named, "name": "dns"}}]}
    maps, secrets = ("audit", "authn", "authz"), ("kc", "plugin", "named", "dns")
    for name in maps:
        put(garden, "/api/v1/configmaps", name)
    for name in secrets:
        put(garden, "/api/v1/secrets", name)
    put(garden, "/api/v1/secrets", "free")
    garden.api.put(f"{CORE}/shoots", shoot)
    async with protecting(garden):
        for resource, names in ((resources.CONFIG_MAP, maps), (resources.SECRET, secrets)):
            for name in names:
                await garden.becomes(resource, name, NAMESPACE, held_by(PROTECTION))
        assert not held_by(PROTECTION)(garden.api.find("/api/v1/secrets", "free", NAMESPACE))
        await garden.client.delete(resources.SECRET, "dns", NAMESPACE)
        garden.api.remove(f"{CORE}/shoots", "demo", NAMESPACE)
        await garden.becomes(resources.SECRET, "dns", NAMESPACE, gone)
        await garden.becomes(resources.CONFIG_MAP, "audit", NAMESPACE, lambda obj: not held_by(PROTECTION)(obj))


async def test_an_object_of_two_shoots_is_held_until_both_are_gone(garden):
    named = [{"name": "a", "resourceRef": {"apiVersion": "v1", "kind": "Secret", "name": "shared"}}]
    put(garden, "/api/v1/secrets", "shared")
    put(garden, "/api/v1/secrets", "marker", finalizer=PROTECTION)
    garden.api.put(f"{CORE}/shoots", changed(SHOOT, "spec.resources", named))
    second = changed(changed(SHOOT, "spec.resources", named), "metadata.name", "second")
    garden.api.put(f"{CORE}/shoots", second)
    async with protecting(garden):
        await garden.becomes(resources.SECRET, "shared", NAMESPACE, held_by(PROTECTION))
        put(garden, "/api/v1/secrets", "marker", finalizer=PROTECTION)
        garden.api.change(f"{CORE}/shoots", "demo", NAMESPACE, {"spec": {"resources": None}})
        await garden.becomes(resources.SECRET, "marker", NAMESPACE, lambda obj: not held_by(PROTECTION)(obj))
        assert held_by(PROTECTION)(garden.api.find("/api/v1/secrets", "shared", NAMESPACE))
        garden.api.remove(f"{CORE}/shoots", "second", NAMESPACE)
        await garden.becomes(resources.SECRET, "shared", NAMESPACE, lambda obj: not held_by(PROTECTION)(obj))


async def test_objects_of_shoots_that_went_while_no_controller_ran_are_released(garden):
    put(garden, "/api/v1/configmaps", "left", finalizer=PROTECTION)
    async with protecting(garden):
        await garden.becomes(resources.CONFIG_MAP, "left", NAMESPACE, lambda obj: not held_by(PROTECTION)(obj))


async def test_resources_of_a_seed_are_held_in_the_garden(garden):
    put(garden, "/api/v1/secrets", "for-seed", "garden")
    named = [{"name": "a", "resourceRef": {"apiVersion": "v1", "kind": "Secret", "name": "for-seed"}}]
    garden.api.put(f"{CORE}/seeds", changed(SEED, "spec.resources", named))
    async with protecting(garden):
        await garden.becomes(resources.SECRET, "for-seed", "garden", held_by(PROTECTION))
        garden.api.change(f"{CORE}/seeds", "seed-1", None, {"spec": {"resources": None}})
        await garden.becomes(resources.SECRET, "for-seed", "garden", lambda obj: not held_by(PROTECTION)(obj))


async def test_labels_of_credentials_go_with_the_last_binding(garden):
    garden.api.put("/api/v1/secrets", SECRET)
    garden.api.put(f"{SECURITY}/credentialsbindings", BINDING)
    async with garden.running(run_reference_controllers(garden.client, garden.caches)):
        await garden.becomes(resources.SECRET, "local", NAMESPACE, held_by("gardener.cloud/gardener"))
        await garden.becomes(resources.CREDENTIALS_BINDING, "local", NAMESPACE, held_by("gardener"))
        await garden.client.delete(resources.CREDENTIALS_BINDING, "local", NAMESPACE)
        await garden.becomes(resources.CREDENTIALS_BINDING, "local", NAMESPACE, gone)
    assert not garden.api.find("/api/v1/secrets", "local", NAMESPACE)["metadata"].get("labels")


async def test_the_secret_of_a_plant_is_held_until_the_plant_is_gone(garden):
    put(garden, "/api/v1/secrets", "crazy-kubeconfig")
    garden.api.put(f"{CORE}/plants", PLANT)
    async with protecting(garden):
        await garden.becomes(resources.SECRET, "crazy-kubeconfig", NAMESPACE, held_by(PROTECTION))
        await garden.client.delete(resources.SECRET, "crazy-kubeconfig", NAMESPACE)
        await garden.becomes(resources.SECRET, "crazy-kubeconfig", NAMESPACE, deleting)
        garden.api.remove(f"{CORE}/plants", "crazy", NAMESPACE)
        await garden.becomes(resources.SECRET, "crazy-kubeconfig", NAMESPACE, gone)


async def test_the_secrets_of_a_controller_deployment_are_held_until_it_is_gone(garden):
    for name in ("pull", "bundle", "values"):
        put(garden, "/api/v1/secrets", name, "garden")
    repository = {"ref": "registry.example.org/a/b:v1", "pullSecretRef": {"name": "pull"}}
    repository["caBundleSecretRef"] = {"name": "bundle"}
    named = [{"name": "a", "resourceRef": {"apiVersion": "v1", "kind": "Secret", "name": "values"}}]
    deployment: dict[str, Any] = {
        "kind": "ControllerDeployment",
        "metadata": {"name": "chart"},
        "helm": {"ociRepository": repository},
    }
    deployment["resources"] = named
    garden.api.put(resources.CONTROLLER_DEPLOYMENT.path(), deployment)
    async with protecting(garden):
        for name in ("pull", "bundle", "values"):
            await garden.becomes(resources.SECRET, name, "garden", held_by(PROTECTION))
        await garden.becomes(
            resources.CONTROLLER_DEPLOYMENT, "chart", None, held_by("core.gardener.cloud/controllerdeployment")
        )
        await garden.client.delete(resources.CONTROLLER_DEPLOYMENT, "chart")
        for name in ("pull", "bundle", "values"):
            await garden.becomes(resources.SECRET, name, "garden", lambda obj: not held_by(PROTECTION)(obj))


async def test_other_kinds_are_held_while_controller_deployments_cannot_be_read(garden):
    """Admission converts them; a garden without its admission keeps Quotas and ExposureClasses all the same."""
    garden.api.answer = lambda request: (
        web.Response(status=500) if request.path.endswith("/controllerdeployments") else None
    )
    put(garden, "/api/v1/secrets", "kept", finalizer=PROTECTION)
    garden.api.put(f"{CORE}/exposureclasses", {"metadata": {"name": "public"}, "handler": "public"})
    async with protecting(garden):
        await garden.becomes(resources.EXPOSURE_CLASS, "public", None, held_by("gardener"))
    assert held_by(PROTECTION)(garden.api.find("/api/v1/secrets", "kept", NAMESPACE)), "its user may be unknown"
