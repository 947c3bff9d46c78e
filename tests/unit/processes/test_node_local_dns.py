"""The way of a node's DNS requests: there while its server answers, elsewhere while it does not, and nothing left."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from tests.unit.kube.waiting import until
from workers import node_local_dns
from workers.node_local_dns import NodeLocalDnsConfig, lead

ADDRESSES = ("169.254.20.10", "100.64.0.10")
TOOL = """#!/bin/sh
echo "$(basename "$0") $*" >> {log}
case "$(basename "$0") $*" in
  ip*tables-restore*) cat > {chain} ;;
  *\\ -C\\ *) exit {code} ;;
esac
"""


class Node:
    """Tools that record their arguments, and a server that may answer."""

    def __init__(self, directory: Path) -> None:
        self._log, self._chain = directory / "log", directory / "chain"
        self._log.touch()
        self.status = 200

    def install(self, directory: Path, *, prepared: bool) -> None:
        for name in ("iptables", "iptables-restore", "ip6tables", "ip6tables-restore", "ip"):
            tool = directory / name
            tool.write_text(TOOL.format(log=self._log, chain=self._chain, code=int(not prepared)))
            tool.chmod(0o755)

    @property
    def told(self) -> list[str]:
        return self._log.read_text().splitlines()

    def leads(self, address: str) -> bool:
        rules = self._chain.read_text().splitlines() if self._chain.exists() else []
        return all(
            f"-A NODE-LOCAL-DNS {direction} {address}/32 -p {protocol} --{port} 53 -j CT --notrack" in rules
            for protocol in ("udp", "tcp")
            for direction, port in (("-d", "dport"), ("-s", "sport"))
        )

    async def until(self, leads: bool) -> None:
        await until(lambda: [self.leads(each) for each in ADDRESSES] == [leads] * len(ADDRESSES))

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(status=self.status)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(tmp_path)
    made.install(tmp_path, prepared=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(node_local_dns, "_LOOK_SECONDS", 0.02)
    return made


async def test_requests_go_to_the_nodes_server_only_while_it_answers(node: Node) -> None:
    app = web.Application()
    app.router.add_get("/health", node.health)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/health"
    leading = asyncio.create_task(lead(NodeLocalDnsConfig(addresses=ADDRESSES, server=url)))
    try:
        await node.until(True)
        node.status = 503
        await node.until(False)
        node.status = 200
        await node.until(True)
        before = len(node.told)
        await asyncio.sleep(0.2)
        assert len(node.told) == before, "nothing is written where nothing changes"
        await runner.cleanup()
        await node.until(False)
    finally:
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        await runner.cleanup()


@pytest.mark.parametrize(("prepared", "inserted"), [(False, 2), (True, 0)])
async def test_a_second_run_finds_the_jumps_into_its_chain(
    node: Node, tmp_path: Path, prepared: bool, inserted: int
) -> None:
    node.install(tmp_path, prepared=prepared)
    await node_local_dns.prepare(NodeLocalDnsConfig(addresses=ADDRESSES, server="http://127.0.0.1:1/"))

    assert sum(" -I " in each for each in node.told) == inserted


async def test_all_rules_are_removed_from_a_node(node: Node) -> None:
    """The rules are removed first: requests meanwhile are routed to the cluster's server."""
    await node_local_dns.give_back(NodeLocalDnsConfig(addresses=ADDRESSES, server="http://127.0.0.1:1/"))

    assert node.told == [
        "iptables-restore --wait --noflush",
        "iptables --wait -t raw -D PREROUTING -j NODE-LOCAL-DNS",
        "iptables --wait -t raw -D OUTPUT -j NODE-LOCAL-DNS",
        "iptables --wait -t raw -X NODE-LOCAL-DNS",
        "ip address delete 169.254.20.10/32 dev lo",
        "ip address delete 100.64.0.10/32 dev lo",
    ]
    assert not any(map(node.leads, ADDRESSES))


async def test_addresses_of_ipv6_have_rules_of_ipv6(node: Node) -> None:
    addresses = ("fd30:1319:f1e:230b::1", "fd12:3456:789a:100::a")
    config = NodeLocalDnsConfig(addresses=addresses, server="http://[::1]:1/")
    await node_local_dns.prepare(config)
    await node_local_dns.give_back(config)

    assert node.told == [
        "ip6tables-restore --wait --noflush",
        "ip6tables --wait -t raw -C PREROUTING -j NODE-LOCAL-DNS",
        "ip6tables --wait -t raw -I PREROUTING -j NODE-LOCAL-DNS",
        "ip6tables --wait -t raw -C OUTPUT -j NODE-LOCAL-DNS",
        "ip6tables --wait -t raw -I OUTPUT -j NODE-LOCAL-DNS",
        "ip6tables-restore --wait --noflush",
        "ip6tables --wait -t raw -D PREROUTING -j NODE-LOCAL-DNS",
        "ip6tables --wait -t raw -D OUTPUT -j NODE-LOCAL-DNS",
        "ip6tables --wait -t raw -X NODE-LOCAL-DNS",
        "ip address delete fd30:1319:f1e:230b::1/128 dev lo",
        "ip address delete fd12:3456:789a:100::a/128 dev lo",
    ]
    assert "-A NODE-LOCAL-DNS -d fd12:3456:789a:100::a/128 -p udp --dport 53 -j CT" in node_local_dns.rules(addresses)


async def test_a_tool_that_refuses_ends_the_process(node: Node, tmp_path: Path) -> None:
    """A restart tries again; requests are still routed to the cluster's server."""
    (tmp_path / "iptables-restore").write_text("#!/bin/sh\nexit 4\n")

    with pytest.raises(RuntimeError, match="iptables-restore --wait --noflush ended with 4"):
        await node_local_dns.prepare(NodeLocalDnsConfig(addresses=ADDRESSES, server="http://127.0.0.1:1/"))
