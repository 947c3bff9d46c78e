"""Certificates that admission makes itself, and the webhooks of the garden that trust them."""

from urllib.parse import urlsplit

from api.constants import ADMISSION_WEBHOOK_AUTHORITY
from api.model import ApiModel
from kube.client import KubeClient, Object
from workers.admission.limits import NO_LIMITS, ResourceAdmissionConfiguration
from workers.admission.webhooks import converted_kinds, webhook_configurations
from workers.lib.serving import ShownCertificate
from workers.lib.webhook_certificates import Server, WebhookCertificates


class OwnCertificates(ApiModel):
    """Certificates that admission makes itself, where no files are given."""

    url: str
    """URL at which the garden's API server reaches admission, like ``https://admission.example.org:9443``."""
    namespace: str = "garden"

    @property
    def server(self) -> Server:
        host = urlsplit(self.url).hostname or ""
        return Server("gardener-admission", host, self.namespace, ADMISSION_WEBHOOK_AUTHORITY)


def admission_certificates(
    client: KubeClient,
    config: OwnCertificates,
    shown: ShownCertificate,
    limits: ResourceAdmissionConfiguration = NO_LIMITS,
) -> WebhookCertificates:
    """Certificates of admission; its webhooks and the kinds that it converts trust their authority."""

    def trusting(bundle: str) -> list[Object]:
        return [*webhook_configurations(config.url, bundle, limits), *converted_kinds(config.url, bundle)]

    return WebhookCertificates(client, config.server, shown, trusting)
