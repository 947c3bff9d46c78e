"""Secrets of a control plane as files of its machine: one directory each, readable by root alone.

Authorities and keys are made once. A certificate is made again before it ends.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from activities.secrets.configs import Certificate, Making, SecretConfig, bundle_of
from activities.secrets.crypto import KeyAlgorithm, KeyPair, renewal_due, validity_of

_SAME = timedelta(hours=1)
"""Two certificates that end within this time end together."""


def _now() -> datetime:
    return datetime.now(UTC)


class FileSecrets:
    """Descriptions are those of control planes in seeds; each becomes the directory of its name."""

    def __init__(self, directory: Path, now: Callable[[], datetime] = _now) -> None:
        self._directory = directory
        self._now = now

    def ensure(self, config: SecretConfig) -> Mapping[str, bytes]:
        """The data of a Secret; made unless it exists, or if it is a certificate that ends soon.

        A second run, or another run now, finds the first one's.
        """
        if self.ends_soon(config):
            self._remove(config.name)
        if not self.has(config.name):
            ca = None
            if isinstance(config, Certificate):
                signer = self.get(config.signer)
                ca = KeyPair(signer["ca.crt"], signer["ca.key"])
            made = config.make(Making(config.name, self._now(), KeyAlgorithm.P256, ca))
            self._write(config.name, made)
        data = self.get(config.name)
        bundle = bundle_of([data], self._now())
        if bundle:
            self.keep(f"{config.name}-bundle", bundle)
        return data

    def ends_soon(self, config: SecretConfig) -> bool:
        """Whether there is a certificate that is to be renewed.

        Authorities and keys never are, nor is a certificate that ends with its authority, like a new one. A certificate
        that an earlier version has made for a longer time is renewed as if its validity were that of today.
        """
        if not isinstance(config, Certificate) or not self.has(config.name):
            return False
        begin, end = validity_of(self.get(config.name)["tls.crt"])
        last = validity_of(self.get(config.signer)["ca.crt"])[1]
        wanted = min(end, begin + config.validity)
        due = renewal_due(int(begin.timestamp()), int(wanted.timestamp()), config.renew_at_percent)
        lasts_longer = min(self._now() + config.validity, last) > wanted + _SAME
        return lasts_longer and self._now().timestamp() >= due

    def keep(self, name: str, data: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Keep the data of a Secret that were made elsewhere, unless there is one of this name. Returns its data."""
        if not self.has(name):
            self._write(name, data)
        return self.get(name)

    def has(self, name: str) -> bool:
        return (self._directory / name).is_dir()

    def get(self, name: str) -> dict[str, bytes]:
        """Raises FileNotFoundError."""
        return {file.name: file.read_bytes() for file in (self._directory / name).iterdir()}

    def all(self) -> dict[str, Mapping[str, bytes]]:
        """The data of all Secrets, by name."""
        return {each.name: self.get(each.name) for each in self._directory.iterdir() if not each.name.startswith(".")}

    def _remove(self, name: str) -> None:
        """Take the directory away as a whole: one without some of its files would be taken for a Secret."""
        removed = Path(tempfile.mkdtemp(dir=self._directory, prefix="."))
        (self._directory / name).rename(removed / name)
        shutil.rmtree(removed)

    def _write(self, name: str, data: Mapping[str, bytes]) -> None:
        """Make the directory as a whole. If another run was first, its files stay."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        unfinished = Path(tempfile.mkdtemp(dir=self._directory, prefix="."))
        for key, content in data.items():
            with os.fdopen(os.open(unfinished / key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        try:
            unfinished.rename(self._directory / name)
        except OSError:
            with contextlib.suppress(OSError):
                shutil.rmtree(unfinished)
            if not self.has(name):
                raise
