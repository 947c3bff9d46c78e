"""DNSRecord: dynamic updates (RFC 2136) of an authoritative server, signed by TSIG (RFC 8945).

The Secret holds ``server``, ``port``, ``zone``, ``tsigKeyName``, ``tsigSecret``, ``tsigAlgorithm``.
"""

import base64
import binascii
import ipaddress
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dns.asyncquery
import dns.exception
import dns.message
import dns.name
import dns.rcode
import dns.tsig
import dns.update
from temporalio.exceptions import ApplicationError

from activities.errors import permanent, transient
from activities.extension import Extension, required_secret_data, secret_data
from activities.provider_local.provider import LocalActuator
from api.errors import ErrorCode
from api.resources import DNS_RECORD

_log = logging.getLogger(__name__)
_TIMEOUT_SECONDS = 5.0
_TXT_CHUNK = 255
"""A TXT record's strings hold at most this many bytes each (RFC 1035, 3.3)."""


class DNSRecordActuator(LocalActuator):
    """Sets the values of one name and type to those of the DNSRecord; other types of the name stay."""

    resource = DNS_RECORD

    async def reconcile(self, extension: Extension) -> dict[str, Any]:
        zone = _Zone.read(await required_secret_data(self._seed, extension), extension)
        spec = extension.spec
        update = zone.update()
        name = _relative(extension, zone)
        values = [_rdata(spec["recordType"], value) for value in spec["values"]]
        try:
            update.replace(name, spec.get("ttl", 120), spec["recordType"], *values)
        except (dns.exception.DNSException, ValueError):
            raise permanent(
                ErrorCode.CONFIGURATION_PROBLEM,
                f"values of {extension} are not valid for a record of type {spec['recordType']}",
            ) from None
        await zone.send(update, f"setting {spec['recordType']} {spec['name']}")
        return {"zone": zone.name.to_text(omit_final_dot=True)}

    async def delete(self, extension: Extension) -> None:
        data = await secret_data(self._seed, extension)
        if data is None:
            return  # without credentials, the record in the zone cannot be deleted (spec/extensions.md 1.5)
        zone = _Zone.read(data, extension)
        update = zone.update()
        update.delete(_relative(extension, zone), extension.spec["recordType"])
        await zone.send(update, f"deleting {extension.spec['recordType']} {extension.spec['name']}")

    async def force_delete(self, extension: Extension) -> None:
        """Delete the record if the zone's credentials work; they are seldom those of the cloud.

        Else the record stays in the zone.
        """
        try:
            await self.delete(extension)
        except ApplicationError as error:
            _log.warning("%s cannot be deleted, its record stays in the zone: %s", extension, error.message)


@dataclass(frozen=True)
class _Zone:
    """A DNS zone, its server, and the key that signs updates."""

    server: str
    port: int
    name: dns.name.Name
    key: dns.tsig.Key

    @classmethod
    def read(cls, secret: Mapping[str, str], extension: Extension) -> "_Zone":
        reference = extension.spec["secretRef"]
        where = f"Secret {reference['namespace']}/{reference['name']}"
        try:
            data = {key: base64.b64decode(value).decode() for key, value in secret.items()}
            zone = extension.spec.get("zone") or extension.status.get("zone") or data["zone"]
            return cls(
                server=str(ipaddress.ip_address(data["server"])),
                port=int(data["port"]),
                name=dns.name.from_text(zone),
                key=dns.tsig.Key(data["tsigKeyName"], data["tsigSecret"], data["tsigAlgorithm"]),
            )
        except KeyError as missing:
            fault = f"has no key {missing}"
        except (ValueError, binascii.Error, dns.exception.DNSException) as error:
            # Only the class of the exception, because its text could quote the key.
            fault = f"is not usable for DNS updates ({type(error).__name__})"
        raise permanent(ErrorCode.CONFIGURATION_PROBLEM, f"{where} {fault}")

    def update(self) -> dns.update.UpdateMessage:
        return dns.update.UpdateMessage(self.name, keyring=self.key)

    async def send(self, update: dns.update.UpdateMessage, doing: str) -> None:
        try:
            answer = await dns.asyncquery.tcp(update, self.server, timeout=_TIMEOUT_SECONDS, port=self.port)
        except (dns.tsig.PeerError, dns.tsig.BadSignature) as error:
            raise self._refused(ErrorCode.INFRA_UNAUTHENTICATED, doing, type(error).__name__) from None
        except dns.exception.FormError:
            # A server that does not serve the zone does not sign its answer.
            raise transient(
                ErrorCode.RETRYABLE_CONFIGURATION_PROBLEM,
                f"{doing}: DNS server {self.server}:{self.port} does not sign its answer;"
                f" check that it serves zone {self.name.to_text(True)}",
            ) from None
        except (OSError, EOFError, dns.exception.DNSException) as error:
            raise transient(
                ErrorCode.RETRYABLE_INFRA_DEPENDENCIES,
                f"{doing}: DNS server {self.server}:{self.port} did not answer ({type(error).__name__})",
            ) from None
        code = answer.rcode()
        if code == dns.rcode.NOERROR:
            return
        name = dns.rcode.to_text(code)
        if code in (dns.rcode.NOTAUTH, dns.rcode.BADSIG, dns.rcode.BADKEY):
            raise self._refused(ErrorCode.INFRA_UNAUTHENTICATED, doing, name)
        if code == dns.rcode.REFUSED:
            raise self._refused(ErrorCode.INFRA_UNAUTHORIZED, doing, name)
        if code in (dns.rcode.NOTZONE, dns.rcode.FORMERR):
            raise self._refused(ErrorCode.CONFIGURATION_PROBLEM, doing, name)
        raise transient(
            ErrorCode.RETRYABLE_INFRA_DEPENDENCIES,
            f"{doing}: DNS server {self.server}:{self.port} answered {name}",
        )

    def _refused(self, code: ErrorCode, doing: str, answer: str) -> Exception:
        return permanent(
            code, f"{doing}: DNS server {self.server}:{self.port} refused with {answer}; check the TSIG key"
        )


def _relative(extension: Extension, zone: _Zone) -> dns.name.Name:
    name = dns.name.from_text(extension.spec["name"])
    if not name.is_subdomain(zone.name):
        raise permanent(
            ErrorCode.CONFIGURATION_PROBLEM,
            f"name {extension.spec['name']} of {extension} is not in zone {zone.name.to_text(True)}",
        )
    return name.relativize(zone.name)


def _rdata(record_type: str, value: str) -> str:
    """A value as text of a zone file: host names made absolute, texts quoted and split into chunks."""
    if record_type == "CNAME":
        return value if value.endswith(".") else f"{value}."
    if record_type == "TXT":
        raw = value.encode()
        chunks = [raw[at : at + _TXT_CHUNK] for at in range(0, len(raw), _TXT_CHUNK)] or [b""]
        return " ".join('"' + "".join(f"\\{byte:03d}" for byte in chunk) + '"' for chunk in chunks)
    return value
