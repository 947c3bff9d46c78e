"""The Alertmanager of a Shoot: it mails alerts of the Shoot's Prometheus to the addresses that the owner names.

Receivers, delays and repetitions: as Gardener's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from activities.components import connections, monitoring
from activities.components.base import Manifest
from activities.components.monitoring import Served
from api import images
from api.decisions.alerting import Smarthost

NAME = "alertmanager-shoot"
PORT = 9093

_DATA = "/alertmanager"
_NOBODY, _OWNERS = "dev-null", "email-kubernetes-ops"


@dataclass(frozen=True)
class Alertmanager:
    served: Served
    receivers: Sequence[str]
    """Mail addresses."""
    smarthost: Smarthost


def objects(alertmanager: Alertmanager) -> list[Manifest]:
    """Everything in the seed, in the order to apply."""
    served, config = alertmanager.served, configuration(alertmanager)
    options = [
        f"--config.file={monitoring.SECRET}/alertmanager.yaml",
        f"--web.external-url=https://{served.host}",
        # No cluster: this Alertmanager has no peers.
        "--cluster.listen-address=",
        f"--storage.path={_DATA}",
    ]
    deployment = monitoring.deployment(
        served,
        "alertmanager",
        images.ALERTMANAGER,
        options,
        data=_DATA,
        cpu="5m",
        memory="20Mi",
        annotations=monitoring.checksum(served, alertmanager=config),
        # The mail server of the owner.
        pod_labels=connections.OUTSIDE,
        automountServiceAccountToken=False,
    )
    return [*monitoring.objects(served, "1Gi", alertmanager=config), deployment]


def configuration(alertmanager: Alertmanager) -> Manifest:
    """Content of ``alertmanager.yaml``."""
    mails = [_email(each, alertmanager.smarthost) for each in alertmanager.receivers]
    return {
        "route": {
            "receiver": _NOBODY,
            "group_by": ["service"],
            "group_wait": "5m",
            "group_interval": "5m",
            "repeat_interval": "72h",
            "routes": [{"receiver": _OWNERS, "matchers": ['visibility=~"all|owner"']}],
        },
        "receivers": [{"name": _NOBODY}, {"name": _OWNERS, "email_configs": mails}],
        "inhibit_rules": [
            _inhibited('severity="critical"', 'severity="warning"', "alertname", "service", "cluster"),
            _inhibited('severity="blocker"', 'severity=~"critical|warning"', "cluster"),
            # Prometheus reaches nodes through the API server and the tunnel, so alerts about these inhibit the others.
            _inhibited('service="vpn"', 'type="shoot"', "type", "cluster"),
            _inhibited('service="kube-apiserver"', 'service="nodes"', "cluster"),
        ],
    }


def _inhibited(source: str, target: str, *equal: str) -> Manifest:
    return {"source_matchers": [source], "target_matchers": [target], "equal": list(equal)}


def _email(receiver: str, smarthost: Smarthost) -> Manifest:
    return {
        "to": receiver,
        "from": smarthost.sender,
        "smarthost": smarthost.address,
        "send_resolved": True,
        **({"auth_username": smarthost.user, "auth_password": smarthost.password} if smarthost.user else {}),
        **({"auth_identity": smarthost.identity} if smarthost.identity else {}),
        **({"tls_config": {"ca": smarthost.ca}} if smarthost.ca else {}),
    }
