"""The Alertmanager of a Shoot: mails to those whom the owner names, about what its Prometheus finds.

Whom it writes to, after how long and how often: as Gardener's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from activities.components import base, monitoring
from activities.components.base import Manifest
from api import images
from api.alerting import Smarthost

NAME = "alertmanager-shoot"
PORT = 9093

_DATA = "/alertmanager"
_NOBODY, _OWNERS = "dev-null", "email-kubernetes-ops"


@dataclass(frozen=True)
class Alertmanager:
    namespace: str
    server: str
    """Name of the Secret with its certificate."""
    users: dict[str, str] = field(repr=False)
    """Hashes of passwords by bcrypt, by user."""
    host: str
    """Name under which the gateway leads to it."""
    receivers: Sequence[str]
    """Addresses of people."""
    smarthost: Smarthost
    replicas: int = 1


def objects(alertmanager: Alertmanager) -> list[Manifest]:
    """Everything in the seed, in the order to apply."""
    namespace = alertmanager.namespace
    config, web = configuration(alertmanager), monitoring.web_config(alertmanager.users)
    return [
        base.service_account(NAME, namespace),
        monitoring.secret(NAME, namespace, alertmanager=config, web=web),
        monitoring.volume_claim(NAME, namespace, "1Gi"),
        *monitoring.served(NAME, namespace, PORT, alertmanager.host),
        _deployment(alertmanager, base.checksum([config, web])),
    ]


def configuration(alertmanager: Alertmanager) -> Manifest:
    """``alertmanager.yaml``."""
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
            # Prometheus sees nodes through the API server and the tunnel.
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


def _deployment(alertmanager: Alertmanager, checksum: str) -> Manifest:
    container = base.container(
        "alertmanager",
        images.ALERTMANAGER,
        [
            "/bin/alertmanager",
            f"--config.file={monitoring.WEB}/alertmanager.yaml",
            f"--web.config.file={monitoring.WEB_FILE}",
            f"--web.listen-address=:{PORT}",
            f"--web.external-url=https://{alertmanager.host}",
            # It is alone.
            "--cluster.listen-address=",
            f"--storage.path={_DATA}",
            "--log.format=json",
        ],
        cpu="5m",
        memory="20Mi",
        mounts={"web": monitoring.WEB, "tls": monitoring.TLS},
        writable={"data": _DATA},
        ports={"https": PORT},
        **monitoring.probes(PORT),
    )
    return monitoring.deployment(
        NAME,
        alertmanager.namespace,
        replicas=alertmanager.replicas,
        annotations={"checksum/config": checksum},
        container=container,
        volumes=[base.secret_volume("web", NAME), base.secret_volume("tls", alertmanager.server)],
        serviceAccountName=NAME,
        automountServiceAccountToken=False,
    )
