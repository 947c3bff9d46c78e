"""Gardener's well-known names: groups, annotations, labels, taints, finalizers, namespaces."""

# API groups and versions.
CORE = "core.gardener.cloud"
SECURITY = "security.gardener.cloud"
AUTHENTICATION = "authentication.gardener.cloud"
EXTENSIONS = "extensions.gardener.cloud"
AUTHENTICATION = "authentication.gardener.cloud"
OPERATIONS = "operations.gardener.cloud"
SEED_MANAGEMENT = "seedmanagement.gardener.cloud"
RESOURCES = "resources.gardener.cloud"
DRUID = "druid.gardener.cloud"
MACHINE = "machine.sapcloud.io"
AUTOSCALING = "autoscaling.k8s.io"

# Namespaces.
GARDEN_NAMESPACE = "garden"
SEED_CLASS = "seed"
"""Class of ManagedResources whose objects are in the seed, and of extension objects of the seed itself."""
ADMISSION_WEBHOOK_AUTHORITY = "gardener-admission"
"""Secret of namespace garden: the CA that the garden's API server trusts for its webhooks."""
ADMISSION_AUTHORITY = "gardener-admission-authority"
"""Secret of namespace garden: the CA of the seed authorizer, and of the API server as its client."""
ISSUER_KEYS = "workload-identity-issuer"
"""Secret of namespace garden: the keys that sign tokens of WorkloadIdentities."""
OWNERSHIP_LEASE = "gardenlet-ownership"
"""Lease in namespace ``garden`` of a seed: the gardenlet renews it while it reaches the garden."""
SEED_LEASE_NAMESPACE = "gardener-system-seed-lease"
SYSTEM_PUBLIC_NAMESPACE = "gardener-system-public"
GARDENER_INFO = "gardener-info"
"""ConfigMap of namespace ``gardener-system-public``: what all users may know of this installation."""
SHOOT_ISSUER_NAMESPACE = "gardener-system-shoot-issuer"
SEED_NAMESPACE_PREFIX = "seed-"
PROJECT_NAMESPACE_PREFIX = "garden-"
TECHNICAL_ID_PREFIX = "shoot--"

# Users and groups.
SEED_USER_PREFIX = "gardener.cloud:system:seed:"
SEEDS_GROUP = "gardener.cloud:system:seeds"
NODE_AGENT_USER_PREFIX = "gardener.cloud:node-agent:machine:"
NODE_AGENTS_GROUP = "gardener.cloud:node-agents"
NODE_AGENT_AUTHORIZER = "node-agent-authorizer"
"""Name of the authorizer of node agents in a Shoot's AuthorizationConfiguration; owners may not use it for theirs."""
ADMINISTRATORS_GROUP = "gardener.cloud:system:administrators"

# Subjects of client certificates for Temporal: organization, and prefix of the common name.
TEMPORAL_PROCESSES = "gardener.cloud:system:operators"
TEMPORAL_PROCESS_PREFIX = "gardener.cloud:system:"
"""Common name of a process of the garden: this prefix and its name, for example ``controller-manager``."""
TEMPORAL_GARDENLETS = SEEDS_GROUP
TEMPORAL_GARDENLET_PREFIX = SEED_USER_PREFIX
"""Common name of a gardenlet: this prefix and the name of its seed."""
TEMPORAL_EXTENSIONS = "gardener.cloud:system:extensions"
TEMPORAL_EXTENSION_PREFIX = "gardener.cloud:system:extension:"
"""Common name of an extension: this prefix, and the names of extension and seed: ``provider-local:seed-1``."""
TEMPORAL_VIEWERS = "gardener.cloud:temporal:viewers"
TEMPORAL_REPAIRERS = "gardener.cloud:temporal:repairers"
TEMPORAL_ADMINS = "gardener.cloud:temporal:admins"
"""Organization in certificates of operators; the common name is the name of the user."""
TEMPORAL_GATEWAYS = "gardener.cloud:temporal:gateways"
"""Organization of clients that pass on the tokens of people, as the Temporal UI does, and may do nothing themselves."""
TEMPORAL_SERVERS = "gardener.cloud:temporal:servers"
"""Organization in the certificates with which the services of a Temporal cluster authenticate to each other."""

# Rights of extensions in a seed.
EXTENSION_ROLE = "extensions.gardener.cloud/control-plane-role-of"
"""Label of a ClusterRole that the gardenlet binds in each control plane; value: name of the ControllerRegistration."""
EXTENSION_TOKEN_WEBHOOK = "extensions.gardener.cloud/token-webhook-of"
"""Label of a Secret beside a control plane with the kubeconfig of a webhook that the API server asks about bearer
tokens; value: type of the Extension."""
EXTENSION_SERVICE_ACCOUNT = "extensions.gardener.cloud/service-account"
"""Annotation of that ClusterRole: ``<namespace>/<name>`` of the ServiceAccount that gets the role."""

# Operations.
OPERATION = "gardener.cloud/operation"
OPERATION_RECONCILE = "reconcile"
OPERATION_RETRY = "retry"
OPERATION_MAINTAIN = "maintain"
OPERATION_MIGRATE = "migrate"
OPERATION_RESTORE = "restore"
OPERATION_WAIT_FOR_STATE = "wait-for-state"
OPERATION_KEEPALIVE = "keepalive"
OPERATION_RENEW = "renew"
"""Value on a Secret with credentials of one of our processes: the process renews them now. Source: spec/api-core.md
13."""
OPERATION_RENEW_KUBECONFIG = "renew-kubeconfig"
OPERATION_RENEW_GARDEN_ACCESS_SECRETS = "renew-garden-access-secrets"
OPERATION_RENEW_WORKLOAD_IDENTITY_TOKENS = "renew-workload-identity-tokens"
OPERATION_FORCE_REDEPLOY = "force-redeploy"
OPERATION_FORCE_IN_PLACE_UPDATE = "force-in-place-update"
OPERATION_ROLLOUT_WORKERS = "rollout-workers"
OPERATION_ROTATE_ROLLOUT_WORKERS = "rotate-rollout-workers"
MAINTENANCE_OPERATION = "maintenance.gardener.cloud/operation"
TIMESTAMP = "gardener.cloud/timestamp"
CERTIFICATE_ISSUERS = "credentials.gardener.cloud/certificate-issuers"
"""Annotation of a Node: issuers of its certificates, as its node agent finds them on the machine."""
INPUTS_DIGEST = "gardener.cloud/inputs-digest"
"""Annotation of extension objects and etcds, not in Gardener: digest of all inputs for which their controllers were
last triggered."""

# Repair of operations, by annotations of a Shoot; this project's own.
REPAIR_PREFIX = "repair.shoot.gardener.cloud/"
REPAIR_BY = f"{REPAIR_PREFIX}by"
"""User who wrote the other annotations of a repair; admission writes it."""
REPAIR_VERB = "repair"
"""Verb of RBAC on shoots of core.gardener.cloud for users who may write annotations of a repair."""

# Custom verbs of RBAC, which admission asks for in addition to update.
RECORD = "record"
"""On authors of authentication.gardener.cloud, not in Gardener: name another user as the author of a binding, in the
annotation ``changed-by``. No object is of that resource, and a role with all verbs on Shoots does not hold the verb."""
MANAGE_MEMBERS = "manage-members"
"""On projects: change the owner, or members who are users or groups, or give a ServiceAccount this verb."""
MODIFY_TOLERATIONS_WHITELIST = "modify-spec-tolerations-whitelist"
"""On projects: change ``spec.tolerations.whitelist``."""
MODIFY_PROFILE_VERBS = ("modify-spec-kubernetes", "modify-spec-machineimages", "modify-spec-providerconfig")
"""On namespacedcloudprofiles: change the field of the spec that the verb names."""
MODIFY_MACHINE_TYPES = "modify-spec-machinetypes"
"""On namespacedcloudprofiles, not in Gardener: write amounts of machine types and volume types that Quotas count."""
APPROVED_TYPES = "quota.gardener.cloud/approved-types"
"""Annotation of a NamespacedCloudProfile, not in Gardener: digest of the machine types and volume types whose amounts a
user with that verb has written or approved. Admission writes it."""

# Annotations.
POD_SECURITY_ENFORCE = "security.gardener.cloud/pod-security-enforce"
"""Annotation of a ControllerRegistration: Pod Security Standard of the namespaces of its installations. The
controller-manager copies it to the ControllerInstallations."""
BOOTSTRAP_TOKEN_ID = "seed.gardener.cloud/bootstrap-token-id"
"""Annotation of a Seed, which an operator sets: id of the bootstrap token that may replace the certificate of the
gardenlet although it is still valid."""
CONFIRMATION_DELETION = "confirmation.gardener.cloud/deletion"
CONFIRMATION_FORCE_DELETION = "confirmation.gardener.cloud/force-deletion"
CHANGED_BY = "gardener.cloud/changed-by"
"""Annotation, not in Gardener: user who wrote the present spec, chose the seed by shoots/binding, or requested an
operation last. Admission writes it."""
DELETION_CONFIRMED_BY = "deletion.gardener.cloud/confirmed-by"
CREATED_BY = "gardener.cloud/created-by"
BASTION_UID = "operations.gardener.cloud/bastion-uid"
"""Label of a Bastion in a seed, not in Gardener: uid of its Bastion in the garden."""
SHOOT_TASKS = "shoot.gardener.cloud/tasks"
SHOOT_IGNORE = "shoot.gardener.cloud/ignore"
SHOOT_SYNC_PERIOD = "shoot.gardener.cloud/sync-period"
SHOOT_SKIP_CLEANUP = "shoot.gardener.cloud/skip-cleanup"
SHOOT_SKIP_READINESS = "shoot.gardener.cloud/skip-readiness"
SHOOT_EXPIRATION_TIMESTAMP = "shoot.gardener.cloud/expiration-timestamp"
SHOOT_CLEANUP_WEBHOOKS_GRACE_PERIOD = "shoot.gardener.cloud/cleanup-webhooks-finalize-grace-period-seconds"
SHOOT_CLEANUP_EXTENDED_APIS_GRACE_PERIOD = "shoot.gardener.cloud/cleanup-extended-apis-finalize-grace-period-seconds"
SHOOT_CLEANUP_RESOURCES_GRACE_PERIOD = "shoot.gardener.cloud/cleanup-kubernetes-resources-finalize-grace-period-seconds"
SHOOT_CLEANUP_RESOURCES_START_TIME = "shoot.gardener.cloud/cleanup-kubernetes-resources-start-time"
SHOOT_NODE_JITTER = "shoot.gardener.cloud/cloud-config-execution-max-delay-seconds"
RESTART_SYSTEMD_SERVICES = "worker.gardener.cloud/restart-systemd-services"
"""Annotation of a Node, which an operator sets: systemd units that the node agent restarts. The node agent then removes
the annotation."""
REFUSED_CONFIGURATION = "node-agent.gardener.cloud/refused-configuration"
"""Annotation of a Node, not in Gardener: checksum of a configuration with which the kubelet did not start, and the
kubelet's last words. The node agent has gone back to the configuration before."""
KUBELET_ERROR = "node-agent.gardener.cloud/kubelet-error"
"""Annotation of a node agent's Lease, not in Gardener: the kubelet's last error while the machine has no Node yet."""
NODE_AGENT_DELAY = "node-agent.gardener.cloud/reconciliation-delay"
SHOOT_NEEDS_RETRY = "maintenance.shoot.gardener.cloud/needs-retry-operation"
CONTROL_PLANE_MIGRATION = "shoot.gardener.cloud/control-plane-migration"
MIGRATION_BAD_CASE = "bad-case"
"""Value of this annotation with which an operator declares the source seed of a move lost: the move runs without it."""
LIVE_MIGRATION = (
    "migration.gardener.cloud/live-migrate",
    "migration.gardener.cloud/inter-region-distance-threshold",
    "migration.gardener.cloud/allow-distant-regions",
)
"""Annotations of a Shoot by which Gardener moves a control plane while it serves. This version refuses them."""
DNS_PROVIDER = "dns.gardener.cloud/provider"
DNS_DOMAIN = "dns.gardener.cloud/domain"
"""Annotations of a Secret of role ``internal-domain`` or ``default-domain``."""
SOURCE_BACKUP_SECRET = "source-etcd-backup"
"""Secret of a control-plane namespace: credentials of the bucket of the source seed, while the control plane moves."""
BACKUP_KEY = "etcd-backup"
"""Secret of a control-plane namespace: credentials of the Shoot's own backups. Also the suffix of the InternalSecret
``<shoot>.etcd-backup`` in the garden, a copy for the seed that takes over the control plane."""
BACKUP_ENTRY_FORCE_DELETION = "backupentry.core.gardener.cloud/force-deletion"
"""Annotation of a BackupEntry; with value ``true`` its backups are deleted without a grace period."""
BACKUP_ENTRY_TAKEN_OVER = "backupentry.core.gardener.cloud/taken-over"
"""Annotation of the BackupEntry that backups are copied from: its seed is lost, and did not hand the backups over."""
BACKUP_EXPIRED = "backup.gardener.cloud/expired"
"""Annotation of a BackupEntry, RFC 3339 time: its gardenlet reports that the grace period of its backups is over."""
PROTECT_FROM_DELETION = "seedmanagement.gardener.cloud/protect-from-deletion"
"""Annotation of a ManagedSeed, or of its Shoot; with value ``true`` a ManagedSeedSet does not remove the replica."""
SEED_PRIORITY = "seedmanagement.gardener.cloud/priority"
"""Annotation of a ManagedSeed, or of its Shoot: a number, 3 if there is none. A ManagedSeedSet removes the replica with
the lowest one first."""
SEED_REMAINS = "seed.gardener.cloud/remains"
"""Annotation of a Seed: its gardenlet lists the stale control planes of Shoots that other seeds took over."""
EMERGENCY_STOP = "shoot.gardener.cloud/emergency-stop-reconciliations"
STATIC_MANIFESTS = "shoot.gardener.cloud/static-manifests"
"""Label, ``true``, of a Secret in a seed's namespace ``garden`` with manifests that all shoots of the seed get."""
STATIC_MANIFESTS_SELECTOR = "static-manifests.shoot.gardener.cloud/selector"
"""Annotation of such a Secret: a label selector, as JSON, of the Shoots that get the manifests."""
AUTHENTICATION_ISSUER = "authentication.gardener.cloud/issuer"
GENERIC_TOKEN_KUBECONFIG_NAME = "generic-token-kubeconfig.secret.gardener.cloud/name"
NAMESPACE_PROJECT = "namespace.gardener.cloud/project"
NAMESPACE_KEEP = "namespace.gardener.cloud/keep-after-project-deletion"
NAMESPACE_CREATED = "namespace.gardener.cloud/created-by-project-controller"

SCALED_DOWN = "dependency-watchdog.gardener.cloud/meltdown-protection-active"
"""Annotation of a Deployment that the dependency watchdog has scaled to zero."""
REPLICAS_BEFORE = "dependency-watchdog.gardener.cloud/replicas"
"""Annotation of such a Deployment: its former number of replicas, which the watchdog restores."""

# Purposes of Shoots.
PURPOSE_TESTING = "testing"
"""Shoots of this purpose have no observability, and the scheduler may choose a seed in another region for them.
Source: spec/flows.md 10."""

# Values of SHOOT_TASKS.
TASK_DEPLOY_INFRASTRUCTURE = "deployInfrastructure"
TASK_DEPLOY_DNS_INTERNAL = "deployDNSRecordInternal"
TASK_DEPLOY_DNS_EXTERNAL = "deployDNSRecordExternal"
TASK_DEPLOY_DNS_INGRESS = "deployDNSRecordIngress"
TASK_RESTART_CONTROL_PLANE_PODS = "restartControlPlanePods"
TASK_RESTART_CORE_ADDONS = "restartCoreAddons"
ANSWERED_TASKS = (
    TASK_DEPLOY_INFRASTRUCTURE,
    TASK_DEPLOY_DNS_INTERNAL,
    TASK_DEPLOY_DNS_EXTERNAL,
    TASK_DEPLOY_DNS_INGRESS,
    TASK_RESTART_CONTROL_PLANE_PODS,
)
"""Tasks that a reconciliation executes, and removes from the Shoot after it has succeeded."""

# Labels.
REVISION_HASH = "controller-revision-hash"
"""Label of the Shoots and ManagedSeeds of a ManagedSeedSet: hash of the templates that they were made of."""
ROLE = "gardener.cloud/role"
ROLE_PROJECT = "project"
ROLE_SHOOT = "shoot"
ROLE_SEED = "seed"
ROLE_EXTENSION = "extension"
ROLE_INTERNAL_DOMAIN = "internal-domain"
ROLE_DEFAULT_DOMAIN = "default-domain"
ROLE_EXPOSURE_CLASS_HANDLER = "exposureclass-handler"
EXPOSURE_CLASS_HANDLER = "handler.exposureclass.gardener.cloud/name"
"""Label of a handler's gateway, and of exposures that the gateway serves."""
PURPOSE = "gardener.cloud/purpose"
UPDATE_RESTRICTION = "gardener.cloud/update-restriction"
DELETION_PROTECTED = "gardener.cloud/deletion-protected"
SHOOT_STATUS = "shoot.gardener.cloud/status"
SHOOT_NO_CLEANUP = "shoot.gardener.cloud/no-cleanup"
SHOOT_NAME = "shoot.gardener.cloud/name"
SHOOT_NAMESPACE = "shoot.gardener.cloud/namespace"
SHOOT_PURPOSE = "shoot.gardener.cloud/purpose"
SHOOT_UID = "shoot.gardener.cloud/uid"
SHOOT_SELF_HOSTED = "shoot.gardener.cloud/self-hosted"
SHOOT_PROVIDER = "shoot.gardener.cloud/provider"
NETWORKING_PROVIDER = "networking.shoot.gardener.cloud/provider"
BACKUP_PROVIDER = "backup.gardener.cloud/provider"
SEED_PROVIDER = "seed.gardener.cloud/provider"
SEED_REGION = "seed.gardener.cloud/region"
PROJECT_NAME = "project.gardener.cloud/name"
SEED_NAME_PREFIX = "name.seed.gardener.cloud/"
SEED_SPEC_HASH = "seed-spec-hash"
REGISTRATION_SPEC_HASH = "registration-spec-hash"
DEPLOYMENT_HASH = "deployment-hash"
"""Labels of a ControllerInstallation with hashes of the specs of its Seed, its registration and its deployment."""
PROVIDER_PREFIX = "provider.shoot.gardener.cloud/"
QUOTA_CONFIG_MAPS_PER_SHOOT = "quota.gardener.cloud/configmaps-per-shoot"
QUOTA_SECRETS_PER_SHOOT = "quota.gardener.cloud/secrets-per-shoot"
PROJECT_SKIP_STALE_CHECK = "project.gardener.cloud/skip-stale-check"
REFERENCE_SECRET_BINDING = "reference.gardener.cloud/secretbinding"
REFERENCE_CREDENTIALS_BINDING = "reference.gardener.cloud/credentialsbinding"
EXTENSION_LABEL_SUFFIX = "extensions.gardener.cloud"
DISCOVERY_PUBLIC = "discovery.gardener.cloud/public"
MANAGED_RESOURCE_ORIGIN = "origin"
ORIGIN_GARDENER = "gardener"
CARE_CONDITION_TYPE = "care.gardener.cloud/condition-type"
WORKER_NAME = "worker.gardener.cloud/name"
WORKER_POOL = "worker.gardener.cloud/pool"
WORKER_KUBERNETES_VERSION = "worker.gardener.cloud/kubernetes-version"
WORKER_SYSTEM_COMPONENTS = "worker.gardener.cloud/system-components"
WORKER_CRI_NAME = "worker.gardener.cloud/cri-name"
WORKER_NODE_AGENT_SECRET = "worker.gardener.cloud/gardener-node-agent-secret-name"
NODE_CRITICAL_COMPONENT = "node.gardener.cloud/critical-component"

KUBE_RESERVED = {"cpu": "80m", "memory": "1Gi", "pid": "20k"}
"""Default of resources that kubelets reserve for system daemons. Source: spec/api-core.md 10.3."""

# Taints.
TAINT_CRITICAL_COMPONENTS_NOT_READY = "node.gardener.cloud/critical-components-not-ready"
TAINT_SEED_PROTECTED = "seed.gardener.cloud/protected"

# Finalizers.
FINALIZER = "gardener"
FINALIZER_FOREIGN = "gardener.cloud/gardener"
"""Finalizer on kinds that are not Gardener's, such as Secrets."""
FINALIZER_REFERENCE_PROTECTION = "gardener.cloud/reference-protection"
FINALIZER_CONTROLLER_DEPLOYMENT = "core.gardener.cloud/controllerdeployment"
FINALIZER_CONTROLLER_REGISTRATION = "core.gardener.cloud/controllerregistration"
FINALIZER_SHOOT_STATE = "core.gardener.cloud/shootstate"
FINALIZER_EXTENSION_PREFIX = "extensions.gardener.cloud/"
FINALIZER_RESOURCE_MANAGER = "resources.gardener.cloud/gardener-resource-manager"
FINALIZER_MACHINE_CONTROLLER = "machine.sapcloud.io/machine-controller"
FINALIZER_MACHINE_CONTROLLER_MANAGER = "machine.sapcloud.io/machine-controller-manager"

# Conditions.
CONDITION_API_SERVER_AVAILABLE = "APIServerAvailable"
CONDITION_CONTROL_PLANE_HEALTHY = "ControlPlaneHealthy"
CONDITION_OBSERVABILITY_HEALTHY = "ObservabilityComponentsHealthy"
CONDITION_EVERY_NODE_READY = "EveryNodeReady"
CONDITION_SYSTEM_COMPONENTS_HEALTHY = "SystemComponentsHealthy"
CONDITION_SOURCE_SEED_CLEANED_UP = "SourceSeedCleanedUp"
"""Condition of a Shoot, not in Gardener: it is present, with status Progressing, while a lost seed may still have a
stale control plane of the Shoot."""
CONDITION_BASTION_READY = "BastionReady"
SEED_GARDENLET_READY = "GardenletReady"
SEED_BACKUP_BUCKETS_READY = "BackupBucketsReady"
SEED_EXTENSIONS_READY = "ExtensionsReady"
CONTROLLER_INSTALLATION_REQUIRED = "Required"
SEED_SYSTEM_COMPONENTS_HEALTHY = "SeedSystemComponentsHealthy"
SEED_MOVED_CONTROL_PLANES_CLEANED_UP = "MovedControlPlanesCleanedUp"
"""Condition of a Seed, not in Gardener: it is present and not True while a seed that has come back cleans up its stale
control planes."""

# Steps to a new encryption key, and its Secret.
RESOURCES_LABELED = "credentials.gardener.cloud/resources-labeled"
ETCD_SNAPSHOTTED = "credentials.gardener.cloud/etcd-snapshotted"
KEY_POPULATED = "credentials.gardener.cloud/new-encryption-key-populated"
"""Like the two names above, an annotation of Deployment kube-apiserver for a finished step to a new encryption key."""
ENCRYPTION_KEY = "kube-apiserver-etcd-encryption-key"
"""Name of the secret with the key that encrypts objects in etcd."""
