"""Certificates for a Temporal cluster and its clients, in the layout that docker-compose.yaml and the charts read."""

from collections.abc import Sequence
from pathlib import Path

from api import constants
from landscape.files import write_file
from landscape.pki import KeyPair, TemporalAuthority

INTERNODE = "temporal-internode"
"""Name that services of a Temporal cluster expect in each other's certificates: examples/compose/temporal-tls.env."""


def write(directory: Path, authority: Path, hosts: Sequence[str], seeds: Sequence[str]) -> list[Path]:
    """Write one directory for the servers and one for each client; existing CAs are used again.

    ``hosts``: names and addresses by which clients reach Temporal.
    """
    from workers.lib.codec import write_key_file  # with Temporal's SDK, which other commands need not load

    signs = TemporalAuthority(authority)
    server = directory / "server"
    for name, pair in (
        ("frontend", signs.for_server("frontend", hosts)),
        (INTERNODE, signs.for_server(INTERNODE, [INTERNODE])),
    ):
        _copy(pair, server / f"{name}.crt", server / f"{name}.key")
    # Binds task tokens to the client that polled them: the same for all frontends.
    write_key_file(server / "task-tokens.keys")
    write_file(server / "clients.crt", signs.of_clients.read_bytes())
    write_file(server / "servers.crt", signs.of_servers.read_bytes())
    clients = {
        "controller-manager": signs.for_process("controller-manager"),
        "admin": signs.for_person("admin", constants.TEMPORAL_ADMINS),
        "gateway": signs.for_gateway("gateway"),
        **{f"gardenlet-{seed}": signs.for_gardenlet(seed) for seed in seeds},
        **{f"provider-local-{seed}": signs.for_extension("provider-local", seed) for seed in seeds},
    }
    for name, pair in clients.items():
        _copy(pair, directory / name / "tls.crt", directory / name / "tls.key")
        write_file(directory / name / "ca.crt", signs.of_servers.read_bytes())
    return [server, *(directory / name for name in clients)]


def _copy(pair: KeyPair, certificate: Path, key: Path) -> None:
    write_file(key, pair.key.read_bytes(), mode=0o600)
    write_file(certificate, pair.certificate.read_bytes())
