"""Place of each kind in the Kubernetes API: group, version, plural, scope.

One constant for each kind that our code uses. Other kinds, which a ManagedResource or a user's cluster may contain, are
found by discovery (``kube.client.KubeClient.resource_for``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

Object = dict[str, Any]
"""An object of the Kubernetes API, as JSON."""
Objects = list[Object]
ObjectView = Mapping[str, Any]
"""An object for functions that only read it."""


class NotAName(ValueError):
    """A text that no object and no namespace can have as its name."""


def _segment(name: str) -> str:
    """A name as a segment of a URL path. The rule for names is that of Kubernetes' API server."""
    if name in (".", "..") or "/" in name or "%" in name:
        raise NotAName(f"{name!r} cannot be the name of an object")
    return quote(name, safe=":@!$&'()*+,;=")


@dataclass(frozen=True)
class Resource:
    """One kind of one API version, and its place in the URL space."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """Value of an object's ``apiVersion``: ``v1``, ``apps/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """URL path of the collection (of all namespaces if none is given), of an object, or of its subresource.

        Raises NotAName: tenants choose many names, and in a URL ``../../x`` is the path of another object.
        """
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", _segment(namespace)]
        parts.append(self.plural)
        parts += [_segment(name)] if name else []
        parts += [subresource] if subresource else []
        return "/" + "/".join(parts)

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


_REGISTRY: dict[tuple[str, str], Resource] = {}


class UnknownKind(KeyError):
    """The kind has no constant here; use discovery by ``KubeClient.resource_for``."""

    def __init__(self, api_version: str, kind: str) -> None:
        super().__init__(api_version, kind)
        self.api_version = api_version
        self.kind = kind

    def __str__(self) -> str:
        return f"kind {self.kind!r} of {self.api_version!r} is not in api.resources"


def resource_of(what: Mapping[str, Any] | tuple[str, str] | str, kind: str = "") -> Resource:
    """The resource of an object, of an ``(apiVersion, kind)`` pair, or of the two as arguments.

    Raises UnknownKind if the kind is not one of ours.
    """
    if isinstance(what, str):
        pair = (what, kind)
    elif isinstance(what, tuple):
        pair = what
    else:
        pair = (str(what.get("apiVersion", "")), str(what.get("kind", "")))
    try:
        return _REGISTRY[pair]
    except KeyError:
        raise UnknownKind(*pair) from None


def _add(api_version: str, kind: str, plural: str = "", *, namespaced: bool = True) -> Resource:
    group, _, version = api_version.rpartition("/")
    resource = Resource(group, version, kind, plural or f"{kind.lower()}s", namespaced)
    _REGISTRY[api_version, kind] = resource
    return resource


def _cluster(api_version: str, kind: str, plural: str = "") -> Resource:
    return _add(api_version, kind, plural, namespaced=False)


# Kubernetes
CONFIG_MAP = _add("v1", "ConfigMap")
ENDPOINTS = _add("v1", "Endpoints", "endpoints")
EVENT = _add("v1", "Event")
LIMIT_RANGE = _add("v1", "LimitRange")
NAMESPACE = _cluster("v1", "Namespace")
NODE = _cluster("v1", "Node")
PERSISTENT_VOLUME = _cluster("v1", "PersistentVolume")
PERSISTENT_VOLUME_CLAIM = _add("v1", "PersistentVolumeClaim")
POD = _add("v1", "Pod")
POD_TEMPLATE = _add("v1", "PodTemplate")
REPLICATION_CONTROLLER = _add("v1", "ReplicationController")
RESOURCE_QUOTA = _add("v1", "ResourceQuota")
SECRET = _add("v1", "Secret")
SERVICE = _add("v1", "Service")
SERVICE_ACCOUNT = _add("v1", "ServiceAccount")

CONTROLLER_REVISION = _add("apps/v1", "ControllerRevision")
DAEMON_SET = _add("apps/v1", "DaemonSet")
DEPLOYMENT = _add("apps/v1", "Deployment")
REPLICA_SET = _add("apps/v1", "ReplicaSet")
STATEFUL_SET = _add("apps/v1", "StatefulSet")

MUTATING_WEBHOOK_CONFIGURATION = _cluster("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration")
VALIDATING_WEBHOOK_CONFIGURATION = _cluster("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration")
VALIDATING_ADMISSION_POLICY = _cluster(
    "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies"
)
VALIDATING_ADMISSION_POLICY_BINDING = _cluster("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding")
CUSTOM_RESOURCE_DEFINITION = _cluster("apiextensions.k8s.io/v1", "CustomResourceDefinition")
API_SERVICE = _cluster("apiregistration.k8s.io/v1", "APIService")
TOKEN_REVIEW = _cluster("authentication.k8s.io/v1", "TokenReview")
SUBJECT_ACCESS_REVIEW = _cluster("authorization.k8s.io/v1", "SubjectAccessReview")
HORIZONTAL_POD_AUTOSCALER = _add("autoscaling/v2", "HorizontalPodAutoscaler")
VERTICAL_POD_AUTOSCALER = _add("autoscaling.k8s.io/v1", "VerticalPodAutoscaler")
CRON_JOB = _add("batch/v1", "CronJob")
JOB = _add("batch/v1", "Job")
CERTIFICATE_SIGNING_REQUEST = _cluster("certificates.k8s.io/v1", "CertificateSigningRequest")
LEASE = _add("coordination.k8s.io/v1", "Lease")
ENDPOINT_SLICE = _add("discovery.k8s.io/v1", "EndpointSlice")
EVENTS_EVENT = _add("events.k8s.io/v1", "Event")
FLOW_SCHEMA = _cluster("flowcontrol.apiserver.k8s.io/v1", "FlowSchema")
PRIORITY_LEVEL_CONFIGURATION = _cluster("flowcontrol.apiserver.k8s.io/v1", "PriorityLevelConfiguration")
INGRESS = _add("networking.k8s.io/v1", "Ingress", "ingresses")
INGRESS_CLASS = _cluster("networking.k8s.io/v1", "IngressClass", "ingressclasses")
NETWORK_POLICY = _add("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
RUNTIME_CLASS = _cluster("node.k8s.io/v1", "RuntimeClass", "runtimeclasses")
POD_DISRUPTION_BUDGET = _add("policy/v1", "PodDisruptionBudget")
CLUSTER_ROLE = _cluster("rbac.authorization.k8s.io/v1", "ClusterRole")
CLUSTER_ROLE_BINDING = _cluster("rbac.authorization.k8s.io/v1", "ClusterRoleBinding")
ROLE = _add("rbac.authorization.k8s.io/v1", "Role")
ROLE_BINDING = _add("rbac.authorization.k8s.io/v1", "RoleBinding")
PRIORITY_CLASS = _cluster("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses")
CSI_DRIVER = _cluster("storage.k8s.io/v1", "CSIDriver")
CSI_NODE = _cluster("storage.k8s.io/v1", "CSINode")
STORAGE_CLASS = _cluster("storage.k8s.io/v1", "StorageClass", "storageclasses")
VOLUME_ATTACHMENT = _cluster("storage.k8s.io/v1", "VolumeAttachment")
VOLUME_SNAPSHOT = _add("snapshot.storage.k8s.io/v1", "VolumeSnapshot")
VOLUME_SNAPSHOT_CONTENT = _cluster("snapshot.storage.k8s.io/v1", "VolumeSnapshotContent")

# Cloud of provider-local
DISK = _add("cloud.local.provider.extensions.gardener.cloud/v1alpha1", "Disk")

# Shoot
OPENID_CONNECT = _cluster("authentication.gardener.cloud/v1alpha1", "OpenIDConnect")

# Garden
CORE_BACKUP_BUCKET = _cluster("core.gardener.cloud/v1beta1", "BackupBucket")
CORE_BACKUP_ENTRY = _add("core.gardener.cloud/v1beta1", "BackupEntry", "backupentries")
CLOUD_PROFILE = _cluster("core.gardener.cloud/v1beta1", "CloudProfile")
CONTROLLER_DEPLOYMENT = _cluster("core.gardener.cloud/v1", "ControllerDeployment")
CONTROLLER_DEPLOYMENT_V1BETA1 = _cluster("core.gardener.cloud/v1beta1", "ControllerDeployment")
CONTROLLER_INSTALLATION = _cluster("core.gardener.cloud/v1beta1", "ControllerInstallation")
CONTROLLER_REGISTRATION = _cluster("core.gardener.cloud/v1beta1", "ControllerRegistration")
EXPOSURE_CLASS = _cluster("core.gardener.cloud/v1beta1", "ExposureClass", "exposureclasses")
INTERNAL_SECRET = _add("core.gardener.cloud/v1beta1", "InternalSecret")
NAMESPACED_CLOUD_PROFILE = _add("core.gardener.cloud/v1beta1", "NamespacedCloudProfile")
PLANT = _add("core.gardener.cloud/v1beta1", "Plant")
PROJECT = _cluster("core.gardener.cloud/v1beta1", "Project")
QUOTA = _add("core.gardener.cloud/v1beta1", "Quota")
SECRET_BINDING = _add("core.gardener.cloud/v1beta1", "SecretBinding")
SEED = _cluster("core.gardener.cloud/v1beta1", "Seed")
SHOOT = _add("core.gardener.cloud/v1beta1", "Shoot")
SHOOT_STATE = _add("core.gardener.cloud/v1beta1", "ShootState")
CREDENTIALS_BINDING = _add("security.gardener.cloud/v1alpha1", "CredentialsBinding")
WORKLOAD_IDENTITY = _add("security.gardener.cloud/v1alpha1", "WorkloadIdentity", "workloadidentities")
OPERATIONS_BASTION = _add("operations.gardener.cloud/v1alpha1", "Bastion")
GARDENLET = _add("seedmanagement.gardener.cloud/v1alpha1", "Gardenlet")
MANAGED_SEED = _add("seedmanagement.gardener.cloud/v1alpha1", "ManagedSeed")
MANAGED_SEED_SET = _add("seedmanagement.gardener.cloud/v1alpha1", "ManagedSeedSet")
SEED_AUTOSCALER = _add("seedmanagement.gardener.cloud/v1alpha1", "SeedAutoscaler")

# Seed
BACKUP_BUCKET = _cluster("extensions.gardener.cloud/v1alpha1", "BackupBucket")
BACKUP_ENTRY = _cluster("extensions.gardener.cloud/v1alpha1", "BackupEntry", "backupentries")
BASTION = _add("extensions.gardener.cloud/v1alpha1", "Bastion")
CLUSTER = _cluster("extensions.gardener.cloud/v1alpha1", "Cluster")
CONTAINER_RUNTIME = _add("extensions.gardener.cloud/v1alpha1", "ContainerRuntime")
CONTROL_PLANE = _add("extensions.gardener.cloud/v1alpha1", "ControlPlane")
DNS_RECORD = _add("extensions.gardener.cloud/v1alpha1", "DNSRecord")
EXTENSION = _add("extensions.gardener.cloud/v1alpha1", "Extension")
INFRASTRUCTURE = _add("extensions.gardener.cloud/v1alpha1", "Infrastructure")
NETWORK = _add("extensions.gardener.cloud/v1alpha1", "Network")
OPERATING_SYSTEM_CONFIG = _add("extensions.gardener.cloud/v1alpha1", "OperatingSystemConfig")
SELF_HOSTED_SHOOT_EXPOSURE = _add("extensions.gardener.cloud/v1alpha1", "SelfHostedShootExposure")
WORKER = _add("extensions.gardener.cloud/v1alpha1", "Worker")
MANAGED_RESOURCE = _add("resources.gardener.cloud/v1alpha1", "ManagedResource")
ETCD = _add("druid.gardener.cloud/v1alpha1", "Etcd")
ETCD_COPY_BACKUPS_TASK = _add("druid.gardener.cloud/v1alpha1", "EtcdCopyBackupsTask")
MACHINE = _add("machine.sapcloud.io/v1alpha1", "Machine")
MACHINE_CLASS = _add("machine.sapcloud.io/v1alpha1", "MachineClass", "machineclasses")
MACHINE_DEPLOYMENT = _add("machine.sapcloud.io/v1alpha1", "MachineDeployment")
MACHINE_SET = _add("machine.sapcloud.io/v1alpha1", "MachineSet")
