"""``gardener worker NAME --config FILE``: run one of our processes."""

import importlib

import click

from workers.lib.runtime import start

_PROCESSES = {
    "admission": ("workers.admission.process", "Webhooks of the garden API."),
    "autoscaler-provider": ("workers.autoscaler_provider", "Scales a shoot's machines for its cluster autoscaler."),
    "backup-restore": ("workers.etcd.backup_restore", "Takes snapshots of one etcd into its bucket."),
    "codec-server": ("workers.codec_server", "Decrypts histories for the Temporal UI and CLI."),
    "controller-manager": ("workers.controller_manager.process", "Workflows of Shoots, and controllers of the garden."),
    "discovery-server": ("workers.discovery_server", "Serves public keys of shoots to verifiers of their tokens."),
    "front-door": ("workers.front_door", "Writes the files of the Envoy at a garden's address, and ends."),
    "gardenlet": ("workers.gardenlet", "The activities of one seed, and its controllers."),
    "gateway": ("workers.gateway", "Configures the Envoy in front of a seed's API servers."),
    "machine-controller-manager": (
        "workers.machine_controller_manager",
        "Creates, replaces and deletes machines of one shoot.",
    ),
    "network-policy-agent": ("workers.network_policy_agent", "Enforces NetworkPolicies on a node."),
    "node-agent": ("workers.node_agent", "Applies the operating system config on a node."),
    "node-local-dns": ("workers.node_local_dns", "Redirects DNS requests of a node to its DNS server."),
    "oidc-webhook-authenticator": (
        "workers.oidc_service.authenticator",
        "Verifies tokens of OpenID Connect for the API server of one shoot.",
    ),
    "promote": ("workers.promote", "Makes a build of the workers the current one, and ends."),
    "provider-local": ("workers.provider_local", "The infrastructure provider of the landscape."),
    "resource-manager": ("workers.resource_manager", "Keeps a shoot's system resources applied."),
    "runtime-gvisor": ("workers.gvisor", "The extension that makes gVisor usable in shoots."),
    "scheduler": ("workers.scheduler", "Chooses the seed of new Shoots."),
    "self-hosted": ("workers.self_hosted.controller", "Controllers of a self-hosted Shoot, on its own machines."),
    "shoot-oidc-service": ("workers.oidc_service", "The extension that deploys these authenticators in a seed."),
    "setup": ("workers.setup", "Prepares a garden and a Temporal, and ends."),
    "subresources": ("workers.subresources", "Issues kubeconfigs of Shoots, behind the garden's front door."),
}


@click.command(help="Run one of our processes.\n\n" + "\n\n".join(f"{n}: {t}" for n, (_, t) in _PROCESSES.items()))
@click.argument("name", type=click.Choice(sorted(_PROCESSES)))
@click.option("--config", "config_path", required=True, type=click.Path(dir_okay=False), help="YAML file.")
def worker(name: str, config_path: str) -> None:
    module = importlib.import_module(_PROCESSES[name][0])
    start(name, module.run, config_path)
