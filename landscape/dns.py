"""The landscape's authoritative DNS server: knot, one zone, updated with RFC 2136 and a TSIG key."""

import hashlib
import secrets
from base64 import b64encode
from collections.abc import Sequence

import dns.asyncquery
import dns.exception
import dns.message
import dns.rcode

from landscape.kernel import has_ipv6
from landscape.pki import write_secret
from landscape.plan import Plan
from landscape.processes import ProcessSpec
from landscape.waiting import until

TSIG_NAME = "gardener"
TSIG_ALGORITHM = "hmac-sha256"


def tsig_secret(plan: Plan) -> str:
    """Key that may update the zone, base64; created at the first call."""
    if not plan.tsig_key.exists():
        write_secret(plan.tsig_key, b64encode(secrets.token_bytes(32)))
    return plan.tsig_key.read_text()


def process(plan: Plan) -> ProcessSpec:
    """Write the server's configuration and its empty zone; returns how to start it."""
    directory = plan.directory / "dns"
    directory.mkdir(parents=True, exist_ok=True)
    run_directory = plan.run_directory / "dns"
    run_directory.mkdir(parents=True, exist_ok=True)
    zone_file = directory / f"{plan.dns_zone}.zone"
    if not zone_file.exists():
        zone_file.write_text(zone(plan))
    configuration = run_directory / "knot.conf"
    content = config(plan, tsig_secret(plan), addresses(plan)).encode()
    write_secret(configuration, content)
    # ``up`` restarts the server if its configuration has changed.
    version = {"GARDENER_VERSION": hashlib.sha256(content).hexdigest()[:12]}
    return ProcessSpec("dns", ("knotd", "--config", str(configuration)), plan.garden.netns, version)


def addresses(plan: Plan) -> list[str]:
    """Addresses of the server, IPv4 first."""
    return [plan.central_address, *([plan.dns_address_ipv6] if has_ipv6() else [])]


def config(plan: Plan, secret: str, listen: Sequence[str]) -> str:
    return f"""server:
  rundir: {plan.run_directory}/dns
  listen: [{", ".join(f"{each}@53" for each in listen)}]
  udp-workers: 1
  tcp-workers: 1
  background-workers: 1
log:
  - target: stdout
    any: info
database:
  storage: {plan.directory}/dns
  journal-db-max-size: 64M
  timer-db-max-size: 16M
  kasp-db-max-size: 16M
key:
  - id: {TSIG_NAME}
    algorithm: {TSIG_ALGORITHM}
    secret: {secret}
acl:
  - id: gardener
    key: {TSIG_NAME}
    action: [update, transfer]
zone:
  - domain: {plan.dns_zone}
    storage: {plan.directory}/dns
    file: {plan.dns_zone}.zone
    acl: gardener
    serial-policy: increment
    zonefile-sync: 0
    journal-content: changes
"""


def zone(plan: Plan) -> str:
    """Static part of the zone. Clients cache negative answers for one second only, because names are added later."""
    return (
        f"$ORIGIN {plan.dns_zone}.\n$TTL 60\n"
        f"@ SOA ns hostmaster 1 3600 600 86400 1\n@ NS ns\nns A {plan.central_address}\n"
    )


async def ready(plan: Plan) -> None:
    query = dns.message.make_query(f"{plan.dns_zone}.", "SOA")

    async def answers() -> bool:
        try:
            answer = await dns.asyncquery.udp(query, plan.central_address, timeout=1)
        except (dns.exception.DNSException, OSError):
            return False
        return answer.rcode() == dns.rcode.NOERROR

    await until(answers, "DNS server", timeout=60)
