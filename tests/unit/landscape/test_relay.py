"""The relay to a Temporal that only the host reaches."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from landscape import relay, temporal
from landscape.plan import Plan, load


@asynccontextmanager
async def relayed(target: str):
    listener = socket.create_server(("127.0.0.1", 0))
    task = asyncio.create_task(relay.serve(listener, target))
    try:
        yield listener.getsockname()[1]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_both_directions_pass_and_an_end_is_passed_on():
    async def shout(reader, writer):
        writer.write((await reader.readline()).upper())
        writer.close()

    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    async with server, relayed(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello\n")
        assert await asyncio.wait_for(reader.read(), 5) == b"HELLO\n"
        writer.close()


async def test_a_target_that_is_away_ends_the_connection(capsys):
    async with relayed("127.0.0.1:1") as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
    assert "connecting to 127.0.0.1:1" in capsys.readouterr().out


@pytest.mark.parametrize("external", ["", "temporal.example.org:7233"])
def test_an_external_temporal_is_remembered_and_takes_the_place_of_our_own(tmp_path, external):
    plan = Plan("a", 1, "1.37.1", external_temporal=external, state_home=tmp_path)
    plan.save()
    assert load("a", tmp_path) == plan
    specs = {spec.name: spec for spec in temporal.processes(plan)}
    server = specs.pop("temporal")
    assert (plan.temporal_address in server.argv and external in server.argv) is bool(external)
    assert set(specs) == (set() if external else {temporal.GATEWAY}), "an external server asks for certificates itself"
    tls = temporal.server(plan).tls
    assert tls
    assert plan.facts["temporal"]["tls"]["certificate"] == str(tls.certificate_file)
    assert all(file.exists() for file in tls.files)


def test_only_the_ui_of_the_dev_server_listens_where_seeds_reach_it(tmp_path):
    plan = Plan("a", 1, "1.37.1", state_home=tmp_path)
    argv = next(spec.argv for spec in temporal.processes(plan) if spec.name == "temporal")
    assert argv[argv.index("--ip") + 1] == "127.0.0.1"
    assert argv[argv.index("--ui-ip") + 1] == plan.central_address
