"""Credentials that a program or an identity provider issues to the user of a kubeconfig, by the official package.

The package is imported only for such a user: the import takes 0.2 s of processor time and 20 MB, and processes start
while users wait. It is an extra of ours, because images of processes do not need its 126 MB (decision 17).
"""

import importlib.util
import json
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from kube.errors import KubeconfigError

_EARLY = timedelta(seconds=30)
"""Credentials are renewed so long before they expire."""


@dataclass(frozen=True, repr=False)  # no repr, because credentials must not appear in a log
class Issued:
    """Credentials from an issuer: a token, or a client certificate and its key in PEM format."""

    token: str = ""
    certificate: bytes = b""
    key: bytes = b""
    expires: datetime | None = None

    @property
    def is_expiring(self) -> bool:
        return self.expires is not None and self.expires - _EARLY <= datetime.now(UTC)


@dataclass(frozen=True, repr=False)
class Issuer:
    """The ``exec`` or ``auth-provider`` of one user of a kubeconfig. Issuers with the same settings are equal."""

    path: Path
    """The kubeconfig: commands and files with relative names are relative to its directory."""
    user: str
    """Name of the user in the kubeconfig."""
    settings: str
    """The user's entry as JSON."""
    cluster: str
    """The cluster's entry as JSON; the program gets it if it asks for it."""

    @classmethod
    def of(cls, path: Path, name: str, user: Mapping[str, Any], cluster: Mapping[str, Any]) -> "Issuer":
        return cls(path, name, *(json.dumps(each, sort_keys=True, default=str) for each in (user, cluster)))

    def issue(self) -> Issued:
        """Run the program, or ask the identity provider. Blocks. Raises KubeconfigError, which quotes no output."""
        if importlib.util.find_spec("kubernetes") is None:
            raise KubeconfigError(
                f"user {self.user} of the kubeconfig gets credentials from a program, and this installation lacks the "
                "package for that: pip install 'gardener-on-temporal[login]'"
            )
        user = json.loads(self.settings)
        return self._run(user["exec"]) if "exec" in user else self._log_in(user["auth-provider"])

    def _run(self, program: Mapping[str, Any]) -> Issued:
        from kubernetes.config.exec_provider import ExecProvider
        from kubernetes.config.kube_config import ConfigNode

        try:
            cluster = ConfigNode("cluster", json.loads(self.cluster))
            status = ExecProvider(ConfigNode("exec", program), str(self.path.parent), cluster).run()
            expires = status.get("expirationTimestamp")
            issued = Issued(
                str(status.get("token") or ""),
                str(status.get("clientCertificateData") or "").encode(),
                str(status.get("clientKeyData") or "").encode(),
                datetime.fromisoformat(expires) if expires else None,
            )
        except Exception as error:  # the package raises many types, and its texts quote the program's output
            raise self._fault(f"program {program.get('command')}", type(error).__name__) from None
        if not issued.token and not (issued.certificate and issued.key):
            raise self._fault(f"program {program.get('command')}", "its output has no token and no certificate")
        return issued

    def _log_in(self, provider: Mapping[str, Any]) -> Issued:
        from kubernetes.client import Configuration
        from kubernetes.config.kube_config import KubeConfigLoader

        settings = {"client-secret": "", **(provider.get("config") or {})}
        if not settings.keys() & {"idp-certificate-authority", "idp-certificate-authority-data"}:
            # Without a CA, the package would not verify the server that names the address for refresh tokens.
            settings["idp-certificate-authority"] = ssl.get_default_verify_paths().cafile or ""
        content = {
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            # Not the real cluster: the package would write its certificates to files.
            "clusters": [{"name": "it", "cluster": {"server": "http://unused"}}],
            "users": [{"name": "it", "user": {"auth-provider": {"name": provider.get("name"), "config": settings}}}],
        }
        configuration = Configuration()
        try:
            loader = KubeConfigLoader(
                content, config_base_path=str(self.path.parent), config_persister=lambda: self._keep(settings)
            )
            loader.load_and_set(configuration)
        except Exception as error:  # as above
            raise self._fault(f"auth-provider {provider.get('name')}", type(error).__name__) from None
        token = str(configuration.api_key.get("BearerToken") or "").removeprefix("Bearer ")
        if not token:
            raise self._fault(f"auth-provider {provider.get('name')}", "it is not supported, or refuses this user")
        return Issued(token, expires=getattr(loader, "expiry", None))

    def _keep(self, settings: Mapping[str, Any]) -> None:
        """Write new tokens into the kubeconfig: many providers accept a refresh token once only."""
        path = self.path.resolve()
        config = yaml.safe_load(path.read_text())
        for each in config["users"]:
            if each["name"] == self.user:
                kept = each["user"]["auth-provider"]["config"]
                kept |= {key: settings[key] for key in ("id-token", "refresh-token") if key in settings}
        descriptor, name = tempfile.mkstemp(dir=path.parent)  # mode 0600
        with open(descriptor, "w") as file:
            yaml.safe_dump(config, file, sort_keys=False)
        os.replace(name, path)

    def _fault(self, what: str, why: str) -> KubeconfigError:
        return KubeconfigError(f"{what} of user {self.user} gave no credentials ({why}); kubectl may show the reason")
