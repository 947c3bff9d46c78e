"""Compiles the expressions of CEL in the files of logins, as the API server of a Shoot will.

A running API server keeps the file of before if an expression does not compile, and says so in its log only; an API
server that starts with such an expression exits. The compiler is that of CEL's authors. Variables and functions are
those that Kubernetes declares for the minor version. A value of one of Kubernetes' own types (an IP, a quantity, a URL)
has type ``dyn`` here: a wrong use of such a value is found by the API server alone. Source: spec/api-core.md 10.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from cel_expr_python import cel
from google.protobuf import descriptor_pb2, descriptor_pool, struct_pb2

from api.validation.field import Faults, Path
from api.validation.logins import AuthenticationConfiguration, AuthorizationConfiguration

_LONGEST = 10_000
"""Characters of the longest expression. A longer one would keep admission busy."""
_CLAIMS, _USER, _REQUEST = "claims", "user", "request"


def check_authentication_expressions(config: AuthenticationConfiguration, minor: int) -> Faults:
    """Faults of the expressions of an AuthenticationConfiguration for Kubernetes 1.``minor``."""
    faults = Faults()
    for index, each in enumerate(config.jwt):
        path, mappings = Path("jwt") @ index, each.claim_mappings
        verifying = [mappings.username.expression]
        for number, rule in enumerate(each.claim_validation_rules):
            here = path / "claimValidationRules" @ number / "expression"
            _check(rule.expression, _CLAIMS, minor, here, faults, condition=True)
            verifying.append(rule.expression)
        here = path / "claimMappings"
        for name, mapping in (("username", mappings.username), ("groups", mappings.groups), ("uid", mappings.uid)):
            _check(mapping.expression, _CLAIMS, minor, here / name / "expression", faults)
        for number, extra in enumerate(mappings.extra):
            _check(extra.value_expression, _CLAIMS, minor, here / "extra" @ number / "valueExpression", faults)
            verifying.append(extra.value_expression)
        if _uses("email", mappings.username.expression) and not any(_uses("email_verified", one) for one in verifying):
            detail = "claims.email needs claims.email_verified, here or in a claim validation rule"
            faults.forbidden(here / "username" / "expression", detail)
        for number, condition in enumerate(each.user_validation_rules):
            here = path / "userValidationRules" @ number / "expression"
            _check(condition.expression, _USER, minor, here, faults, condition=True)
    return faults


def check_authorization_expressions(config: AuthorizationConfiguration, minor: int) -> Faults:
    """Faults of the match conditions of an AuthorizationConfiguration for Kubernetes 1.``minor``."""
    faults = Faults()
    for index, authorizer in enumerate(config.authorizers):
        path = Path("authorizers") @ index / "webhook" / "matchConditions"
        for number, each in enumerate(authorizer.webhook.match_conditions if authorizer.webhook else ()):
            _check(each.expression, _REQUEST, minor, path @ number / "expression", faults, condition=True)
    return faults


def _check(expression: str, variable: str, minor: int, path: Path, faults: Faults, *, condition: bool = False) -> None:
    if not expression.strip():
        return  # another rule reports it where one is needed
    if len(expression) > _LONGEST:
        faults.forbidden(path, f"is longer than {_LONGEST} characters")
        return
    try:
        compiled = _environment(variable, minor).compile(expression)
    except RuntimeError as error:
        faults.forbidden(path, f"does not compile: {_reason(str(error))}")
        return
    if condition and compiled.return_type() != cel.Type.BOOL:
        faults.forbidden(path, "must be a condition that is true or false; compare the claim with a value")


def _reason(text: str) -> str:
    """First line of the compiler's error: place and reason."""
    line = text.splitlines()[0].removeprefix("INVALID_ARGUMENT: ").removeprefix("ERROR: <input>:")
    return line.replace(" (in container '')", "").strip()


_LITERAL = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""")


def _uses(claim: str, expression: str) -> bool:
    """Whether an expression reads a claim by ``claims.<name>`` or ``claims.?<name>``."""
    return re.search(rf"\bclaims\s*\.\s*\??\s*{claim}\b", _LITERAL.sub("''", expression)) is not None


# What Kubernetes declares

_D, _S, _B, _I = cel.Type.DYN, cel.Type.STRING, cel.Type.BOOL, cel.Type.INT
_TEXTS, _LIST = cel.Type.List(_S), cel.Type.List(_D)

_Overloads = Mapping[str, tuple[tuple[cel.Type, ...], ...]]
"""For each function the types of its overloads: the result, then the parameters."""

_FUNCTIONS: _Overloads = {
    "strings.quote": ((_S, _S),),
    "isURL": ((_B, _S),),
    "url": ((_D, _S),),
    "ip": ((_D, _S),),
    "isIP": ((_B, _S),),
    "ip.isCanonical": ((_B, _S),),
    "cidr": ((_D, _S),),
    "isCIDR": ((_B, _S),),
    "quantity": ((_D, _S),),
    "isQuantity": ((_B, _S),),
    "semver": ((_D, _S), (_D, _S, _B)),
    "isSemver": ((_B, _S), (_B, _S, _B)),
    "format.named": ((_D, _S),),
    **{
        f"format.{name}": ((_D,),)
        for name in (
            *("dns1123Label", "dns1123Subdomain", "dns1035Label", "qualifiedName"),
            *("dns1123LabelPrefix", "dns1123SubdomainPrefix", "dns1035LabelPrefix"),
            *("labelValue", "uri", "uuid", "byte", "date", "datetime"),
        )
    },
}
_METHODS: _Overloads = {
    # Of texts; indexOf and lastIndexOf also of lists.
    "charAt": ((_S, _S, _I),),
    "indexOf": ((_I, _D, _D), (_I, _S, _S, _I)),
    "lastIndexOf": ((_I, _D, _D), (_I, _S, _S, _I)),
    "join": ((_S, _TEXTS), (_S, _TEXTS, _S)),
    "lowerAscii": ((_S, _S),),
    "upperAscii": ((_S, _S),),
    "replace": ((_S, _S, _S, _S), (_S, _S, _S, _S, _I)),
    "split": ((_TEXTS, _S, _S), (_TEXTS, _S, _S, _I)),
    "substring": ((_S, _S, _I), (_S, _S, _I, _I)),
    "trim": ((_S, _S),),
    "format": ((_S, _S, _LIST),),
    "find": ((_S, _S, _S),),
    "findAll": ((_TEXTS, _S, _S), (_TEXTS, _S, _S, _I)),
    # Of lists.
    "isSorted": ((_B, _LIST),),
    **dict.fromkeys(("sum", "min", "max"), ((_D, _LIST),)),
    # Of URLs, IPs, CIDRs, quantities, versions and formats.
    **dict.fromkeys(("getScheme", "getHost", "getHostname", "getPort", "getEscapedPath"), ((_S, _D),)),
    "getQuery": ((cel.Type.Map(_S, _TEXTS), _D),),
    **dict.fromkeys(("family", "prefixLength", "asInteger", "sign", "major", "minor", "patch"), ((_I, _D),)),
    **dict.fromkeys(("isUnspecified", "isLoopback", "isLinkLocalMulticast", "isLinkLocalUnicast"), ((_B, _D),)),
    **dict.fromkeys(("isGlobalUnicast", "isInteger"), ((_B, _D),)),
    **dict.fromkeys(("containsIP", "containsCIDR", "isGreaterThan", "isLessThan"), ((_B, _D, _D),)),
    **dict.fromkeys(("ip", "masked"), ((_D, _D),)),
    **dict.fromkeys(("add", "sub", "validate"), ((_D, _D, _D),)),
    "compareTo": ((_I, _D, _D),),
    "asApproximateFloat": ((cel.Type.DOUBLE, _D),),
}
_EXTENSIONS = {"optional": 0, "sets": 0, "two-var-comprehensions": 0, "lists": 34}
"""Extensions of CEL, and the first minor version of Kubernetes that has them, if not all do."""


@lru_cache(32)
def _environment(variable: str, minor: int) -> cel.Env:
    """The declarations for one variable. They depend on the minor version alone, so each environment is made once."""
    names = [name for name, first in _EXTENSIONS.items() if minor >= first]
    types = {
        _CLAIMS: cel.Type("map<string,any>"),
        _USER: cel.Type("kubernetes.UserInfo"),
        _REQUEST: cel.Type("kubernetes.SubjectAccessReviewSpec"),
    }
    return cel.NewEnv(
        descriptor_pool=_types(),
        config=cel.NewEnvConfigFromYaml("extensions:\n" + "".join(f'- name: "{name}"\n' for name in names)),
        variables={variable: types[variable]},
        functions=list(_declarations()),
    )


def _declarations() -> Iterator[cel.FunctionDecl]:
    for name in sorted({*_FUNCTIONS, *_METHODS}):
        overloads = [
            cel.Overload(
                id=f"{name}_{'method' if member else 'function'}_{number}",
                return_type=result,
                parameters=parameters,
                is_member=member,
            )
            for member, table in ((False, _FUNCTIONS), (True, _METHODS))
            for number, (result, *parameters) in enumerate(table.get(name, ()))
        ]
        yield cel.FunctionDecl(name, overloads)


_SELECTOR = {"rawSelector": "string", "requirements": "[]SelectorRequirement"}
_MESSAGES: Mapping[str, Mapping[str, str]] = {
    "UserInfo": {"username": "string", "uid": "string", "groups": "[]string", "extra": "extra"},
    "SelectorRequirement": {"key": "string", "operator": "string", "values": "[]string"},
    "FieldSelectorAttributes": _SELECTOR,
    "LabelSelectorAttributes": _SELECTOR,
    "ResourceAttributes": {
        **dict.fromkeys(("namespace", "verb", "group", "version", "resource", "subresource", "name"), "string"),
        "fieldSelector": "FieldSelectorAttributes",
        "labelSelector": "LabelSelectorAttributes",
    },
    "NonResourceAttributes": {"path": "string", "verb": "string"},
    "SubjectAccessReviewSpec": {
        "resourceAttributes": "ResourceAttributes",
        "nonResourceAttributes": "NonResourceAttributes",
        "user": "string",
        "groups": "[]string",
        "extra": "extra",
        "uid": "string",
    },
}
"""Fields of the types of Kubernetes, each with its type. An ``extra`` is a map of lists."""


def _types() -> descriptor_pool.DescriptorPool:
    """The types of Kubernetes as messages, which is how the compiler takes types with fields."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="kubernetes.proto", package="kubernetes", syntax="proto3", dependency=["google/protobuf/struct.proto"]
    )
    for message, fields in _MESSAGES.items():
        made = file.message_type.add(name=message)
        for number, (name, kind) in enumerate(fields.items(), 1):
            repeated = kind == "extra" or kind.startswith("[]")
            label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            if kind.removeprefix("[]") == "string":
                made.field.add(name=name, number=number, type=field.TYPE_STRING, label=label)
                continue
            of = f".kubernetes.{kind.removeprefix('[]')}"
            if kind == "extra":
                of = f".kubernetes.{message}.ExtraEntry"
                entry = made.nested_type.add(name="ExtraEntry")
                entry.options.map_entry = True
                entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
                value = entry.field.add(name="value", number=2, type=field.TYPE_MESSAGE, label=field.LABEL_OPTIONAL)
                value.type_name = ".google.protobuf.ListValue"
            made.field.add(name=name, number=number, type=field.TYPE_MESSAGE, type_name=of, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return pool
