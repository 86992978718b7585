"""The ``gnomon clients`` command."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    clients = typer.Typer(help="Install and list the clients that runs use.", no_args_is_help=True)
    clients.command("install")(install)
    clients.command("list")(list_clients)
    app.add_typer(clients, name="clients")


def install(
    names: Annotated[
        list[str] | None, typer.Argument(help="Clients to install; all of them by default.")
    ] = None,
) -> None:
    """Build the locked environments of the clients, once; later calls return at once."""
    from gnomon.harness.clients.environment import ClientError
    from gnomon.harness.clients.install import install as build

    try:
        build(lambda line: typer.echo(line), names or None)
    except ClientError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("interrupted; nothing was kept", err=True)
        raise typer.Exit(130) from None


def list_clients() -> None:
    """Show each client, its version, its lock and where it is installed."""
    from gnomon.harness.clients.catalogue import CLIENTS, MEBIBYTE
    from gnomon.harness.clients.environment import find, folder, lock_sha256

    for client in CLIENTS.values():
        size = f"about {client.disk_bytes // MEBIBYTE} MiB"
        state = "installed" if find(client) is not None else f"not installed ({size})"
        typer.echo(f"{client.name} {client.version}: {state}")
        typer.echo(f"  {client.purpose}")
        typer.echo(f"  lock    {lock_sha256(client)[:16]}, {len(client.pins)} packages")
        typer.echo(f"  folder  {folder(client)}")
