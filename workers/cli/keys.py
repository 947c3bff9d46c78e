"""``gardener keys``: make root keys, and derive from them the key file of one process or of operators.

Keys are read from files and written to files; no command takes a key as an argument.
"""

from pathlib import Path

import click

from activities.secrets.keyring import (
    CodecError,
    add_root_key,
    promote_root_key,
    read_keyring,
    write_key_file,
    write_private,
)

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group()
def keys() -> None:
    """Keys that encrypt payloads in Temporal, and ShootStates in the garden."""


@keys.command()
@click.argument("file", type=_FILE)
def create(file: Path) -> None:
    """Make FILE with one new root key. An existing file is left as it is."""
    write_key_file(file)
    click.echo(f"{file} has {_count(file)}")


@keys.command()
@click.argument("file", type=_FILE)
def add(file: Path) -> None:
    """Add a new root key to FILE as its last line. It only decrypts until `promote`."""
    try:
        add_root_key(file)
    except CodecError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{file} has {_count(file)}")


@keys.command()
@click.argument("file", type=_FILE)
@click.argument("key-id")
def promote(file: Path, key_id: str) -> None:
    """Put the line of KEY-ID on top of FILE: it encrypts. Every process must be able to decrypt with it by then."""
    try:
        promote_root_key(file, key_id)
    except CodecError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{file} has {_count(file)}")


@keys.command()
@click.argument("root", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--gardenlet", metavar="SEED", help="For the gardenlet of a seed: its queue, and its ShootStates.")
@click.option("--provider-local", metavar="SEED", help="For the extension provider-local of a seed: its queue.")
@click.option("--operators", is_flag=True, help="For people: what they send to the garden's workflows.")
@click.option("-o", "--output", type=_FILE, required=True, help="The file to write; only its owner can read it.")
def derive(root: Path, gardenlet: str | None, provider_local: str | None, operators: bool, output: Path) -> None:
    """Derive a key file of the root keys in ROOT, for exactly one of the processes below."""
    from workers.lib.codec import derived_keys

    if sum(map(bool, (gardenlet, provider_local, operators))) != 1:
        raise click.UsageError("say one of --gardenlet, --provider-local and --operators: each has a file of its own")
    try:
        write_private(
            output,
            derived_keys(root, gardenlet=gardenlet or "", provider_local=provider_local or "", operators=operators),
        )
    except CodecError as error:
        raise click.ClickException(f"{root}: {error}") from None
    click.echo(f"{output} is written")


def _count(file: Path) -> str:
    try:
        ids = list(read_keyring(file).roots)
    except CodecError as error:
        raise click.ClickException(str(error)) from None
    if not ids:
        raise click.ClickException(f"{file} holds derived keys, not root keys")
    others = f"; {', '.join(ids[1:])} only decrypt" if ids[1:] else ""
    return f"root key {ids[0]}, which encrypts{others}"
