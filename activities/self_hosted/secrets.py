"""Secrets of a control plane as files of its machine: one directory each, made once, readable by root alone."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from activities.secrets.configs import Certificate, Making, SecretConfig, bundle_of
from activities.secrets.crypto import KeyAlgorithm, KeyPair


class FileSecrets:
    """Descriptions are those of control planes in seeds; each becomes the directory of its name."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def ensure(self, config: SecretConfig) -> Mapping[str, bytes]:
        """The data of a Secret; made unless it exists. A second run, or another run now, finds the first one's."""
        if not self.has(config.name):
            ca = None
            if isinstance(config, Certificate):
                signer = self.get(config.signer)
                ca = KeyPair(signer["ca.crt"], signer["ca.key"])
            made = config.make(Making(config.name, datetime.now(UTC), KeyAlgorithm.P256, ca))
            self._write(config.name, made)
        data = self.get(config.name)
        bundle = bundle_of([data], datetime.now(UTC))
        if bundle:
            self.keep(f"{config.name}-bundle", bundle)
        return data

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
