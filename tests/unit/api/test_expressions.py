"""Expressions of CEL in the files of logins: what the API server would refuse is refused when it is written."""

import json
import time
from typing import Any

import pytest

from api.validation import logins
from api.validation.expressions import check_authentication_expressions, check_authorization_expressions
from tests.unit.api.test_logins import AUTHENTICATION, AUTHORIZATION, with_

USERNAME = "jwt/0/claimMappings/username"
CLAIM_RULES, USER_RULES = "jwt/0/claimValidationRules", "jwt/0/userValidationRules"
CONDITIONS = "authorizers/0/webhook/matchConditions"


def faults(path: str, value: Any, minor: int = 37) -> str:
    if path.startswith("authorizers"):
        of_webhooks, _ = logins.parse_authorization(json.dumps(with_(AUTHORIZATION, path, value)), minor)
        assert of_webhooks is not None
        return str(check_authorization_expressions(of_webhooks, minor))
    made = with_(AUTHENTICATION, path, value) | {"apiVersion": "apiserver.config.k8s.io/v1beta1"}
    config, _ = logins.parse_authentication(json.dumps(made), minor)
    assert config is not None
    return str(check_authentication_expressions(config, minor))


# fmt: off
ACCEPTED: list[tuple[str, Any]] = [
    (USERNAME, {"expression": "'company:' + claims.sub"}),
    (USERNAME, {"expression": "claims.?sub.orValue('unknown')"}),
    (USERNAME, {"expression": "claims.email_verified ? claims.email : claims.sub"}),
    ("jwt/0/claimMappings/groups", {"expression": "claims.roles.split(',').map(each, 'company:' + each)"}),
    ("jwt/0/claimMappings/groups", {"expression": "has(claims.groups) ? claims.groups : []"}),
    ("jwt/0/claimMappings/extra", [{"key": "a.b/c", "valueExpression": "claims.address.city"}]),
    (CLAIM_RULES, [{"expression": "claims.exp - claims.nbf <= 86400"}]),
    (CLAIM_RULES, [{"expression": "claims.hd == 'example.org' && dyn(claims.aud).exists(each, each == 'cluster')"}]),
    (CLAIM_RULES, [{"expression": "cidr('10.0.0.0/8').containsIP(ip(claims.address))"}]),
    (CLAIM_RULES, [{"expression": "[1, 2].all(index, each, index < each) && sets.contains(claims.groups, ['a'])"}]),
    (USER_RULES, [{"expression": "!user.username.startsWith('system:')"}]),
    (USER_RULES, [{"expression": "user.groups.all(each, each.find('^[a-z]+$') != '')"}]),
    (USER_RULES, [{"expression": "'b' in user.extra['example.org/a'] || user.uid.size() > 3"}]),
    (CONDITIONS, [{"expression": "has(request.resourceAttributes) && request.resourceAttributes.verb == 'get'"}]),
    (CONDITIONS, [{"expression": "!('system:masters' in request.groups) && request.user != ''"}]),
    (CONDITIONS, [{"expression": "request.resourceAttributes.labelSelector.requirements.exists(x, x.key == 'a')"}]),
    (CONDITIONS, [{"expression": "request.nonResourceAttributes.path.startsWith('/api')"}]),
]
"""Fields with expressions that each API server compiles: tests/unit/components/test_logins.py starts one with all."""
# fmt: on


@pytest.mark.parametrize(("path", "value"), ACCEPTED)
def test_expressions_that_kubernetes_compiles_are_accepted(path: str, value: Any) -> None:
    assert faults(path, value) == "[]"


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (USERNAME, {"expression": "claims.sub +"}, "username.expression: Forbidden: does not compile: 1:13: Syntax"),
        (USERNAME, {"expression": "claim.sub"}, "does not compile: 1:6: undeclared reference to 'claim.sub'"),
        (USERNAME, {"expression": "user.username"}, "undeclared reference to 'user.username'"),
        (USERNAME, {"expression": "lower(claims.sub)"}, "undeclared reference to 'lower'"),
        (USERNAME, {"expression": "'a' + 1"}, "no matching overload for '_+_' applied to '(string, int)'"),
        (USERNAME, {"expression": "claims.email"}, "claims.email needs claims.email_verified"),
        (USERNAME, {"expression": "claims.email + 'claims.email_verified'"}, "claims.email needs"),
        ("jwt/0/claimMappings/groups", {"expression": "claims.groups.("}, "groups.expression: Forbidden: does not"),
        ("jwt/0/claimMappings/uid", {"expression": "sub"}, "uid.expression: Forbidden: does not compile"),
        ("jwt/0/claimMappings/extra", [{"key": "a.b/c", "valueExpression": "x"}], "extra[0].valueExpression: Forb"),
        (CLAIM_RULES, [{"claim": "a"}, {"expression": "clams.b == 1"}], "jwt[0].claimValidationRules[1].expression: F"),
        (CLAIM_RULES, [{"expression": "claims.aud.exists(each, each == 'a')"}], "cannot be the range"),
        (CLAIM_RULES, [{"expression": "claims.email_verified"}], "must be a condition that is true or false"),
        (USER_RULES, [{"expression": "user.name == 'a'"}], "userValidationRules[0].expression: Forbidden: does not "
         "compile: 1:5: undefined field 'name'"),
        (USER_RULES, [{"expression": "user.groups.exists(each, each == 1)"}], "applied to '(string, int)'"),
        (USER_RULES, [{"expression": "claims.sub == 'a'"}], "undeclared reference to 'claims"),
        (CONDITIONS, [{"expression": "request.verb == 'get'"}], "authorizers[0].webhook.matchConditions[0].expression: "
         "Forbidden: does not compile: 1:8: undefined field 'verb'"),
        (CONDITIONS, [{"expression": "request.user"}], "must be a condition"),
        (CONDITIONS, [{"expression": "'a' == '" + "x" * 10_000 + "'"}], "is longer than 10000 characters"),
        (CONDITIONS, [{"expression": "(" * 5000}], "does not compile"),
        (CONDITIONS, [{"expression": "\x00ü"}], "does not compile"),
    ],
)  # fmt: skip
def test_what_kubernetes_would_not_compile_is_refused_with_its_place(path: str, value: Any, fault: str) -> None:
    assert fault in faults(path, value)


def test_a_verified_mail_address_may_be_checked_by_a_rule() -> None:
    made = with_(AUTHENTICATION, CLAIM_RULES, [{"expression": "claims.email_verified == true"}])
    config, _ = logins.parse_authentication(json.dumps(with_(made, USERNAME, {"expression": "claims.email"})), 37)
    assert config is not None
    assert not check_authentication_expressions(config, 37)


def test_functions_are_those_of_the_version() -> None:
    sorting = [{"expression": "user.groups.sort()[0] == 'a'"}]
    assert faults(USER_RULES, sorting, 34) == "[]"
    assert "undeclared reference to 'sort'" in faults(USER_RULES, sorting, 33)


@pytest.mark.parametrize(
    "expression",
    ["claims.a" + " + claims.a" * 900, "[" + "1," * 4990 + "1]", "claims.a" + ".b" * 4990, "true ? " * 1400 + "1"],
    ids=["a sum", "a list", "a path", "conditions"],
)
def test_an_expression_keeps_admission_busy_for_a_moment_only(expression: str) -> None:
    """A tenant could otherwise keep all other users from writing."""
    started = time.perf_counter()
    faults(USERNAME, {"expression": expression})
    assert time.perf_counter() - started < 1
