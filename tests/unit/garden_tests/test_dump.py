"""A dump has no credential, wherever a program has repeated it."""

import base64
import json

import pytest

from workers.cli.garden_tests.dump import REDACTED, Scrubber, redacted, without_bookkeeping

KUBECONFIG = "users:\n- user:\n    token: 'eyJhbGciOiJFUzI1NiJ9.payload'\n  name: me\n"
PEM = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIBrotherLine1rotherLine1\n-----END EC PRIVATE KEY-----\n"


def encoded(value: str) -> str:
    return base64.b64encode(value.encode()).decode()


def secret(**values: str):
    data = {key.replace("_", "."): encoded(value) for key, value in values.items()}
    return {"kind": "Secret", "metadata": {"name": "s", "namespace": "n"}, "data": data}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("correct horse battery", "login with correct horse battery failed"),
        ("hunter2hunter2", "--proxy-login=hunter2hunter2"),
        ("hunter2hunter2", f"data: {encoded('hunter2hunter2')}"),
        ("hunter2hunter2\n", "line before\nhunter2hunter2 and after"),
        (KUBECONFIG, "sent eyJhbGciOiJFUzI1NiJ9.payload"),
        (PEM, "read MHcCAQEEIBrotherLine1rotherLine1"),
        ("päßwörter-sind-lang", "päßwörter-sind-lang"),
    ],
)
def test_value_is_replaced_in_other_texts(value, shown):
    scrubber = Scrubber()
    assert scrubber.text(shown) == shown
    scrubber.learn(secret(key=value))
    assert REDACTED in scrubber.text(shown)


@pytest.mark.parametrize(
    ("text", "secret_part"),
    [
        (f"key: {PEM} end", "MHcCAQEEIBrotherLine1"),
        ("cut off: " + PEM[:60], "MHcCAQEEIBrotherLine1"),
        (PEM.replace("\n", "\\n"), "MHcCAQEEIBrotherLine1"),
        ("sent eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJtZSJ9.c2lnbmF0dXJl by mistake", "c2lnbmF0dXJl"),
        ("Authorization: Bearer abcdef.0123456789abcdef", "0123456789abcdef"),
        ("--password=hunter2", "hunter2"),
        ('{"access_token":"hunter2"}', "hunter2"),
        (r'{"text":"{\"clientSecret\": \"hunter2\"}"}', "hunter2"),
        ("https://me:hunter2@example.org/path", "hunter2"),
        ("client-key-data: LS0tLS1CRUdJTg==", "LS0tLS1CRUdJTg"),
        (KUBECONFIG, "eyJhbGciOiJFUzI1NiJ9"),
        (f"config {encoded(KUBECONFIG)}", encoded(KUBECONFIG)),
        (f"config {encoded(PEM)}", encoded(PEM)),
    ],
)
def test_credential_is_replaced_though_no_secret_has_it(text, secret_part):
    """For example of a Secret that this user may not read, or that was deleted meanwhile."""
    assert secret_part in text
    found = Scrubber().text(text)
    assert secret_part not in found
    assert REDACTED in found


@pytest.mark.parametrize(
    "obj",
    [
        {"name": "ADMIN_PASSWORD", "value": "hunter2"},
        {"metadata": {"annotations": {"example.org/bootstrap-token": "hunter2"}}},
        {"data": {"apiKey": "hunter2"}},
        {"metadata": {"annotations": {"example.org/config": "users: [{user: {token: hunter2}}]"}}},
    ],
)
def test_field_that_is_a_credential_by_its_name_is_replaced(obj):
    found = json.dumps(Scrubber().of(obj))
    assert "hunter2" not in found
    assert REDACTED in found


@pytest.mark.parametrize(
    "obj",
    [
        {"name": "KUBECONFIG", "value": "/etc/kubeconfig"},
        {"name": "LOG_LEVEL", "value": "info"},
        {"secretRef": {"name": "ca"}, "secretName": "ca", "automountServiceAccountToken": False},
        {"message": 'secret "ca" not found, basic checks failed, tokens: 3 of 4'},
        {"sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"},
        {"caBundle": encoded("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")},
    ],
)
def test_names_and_public_texts_stay_readable(obj):
    assert Scrubber().of(obj) == obj


def test_longer_value_is_replaced_as_a_whole():
    """Otherwise the rest of the longer value would stay."""
    scrubber = Scrubber()
    scrubber.learn(secret(short="abcdefgh", long="abcdefgh-and-the-rest"))
    assert scrubber.text("is abcdefgh-and-the-rest.") == f"is {REDACTED}."


def test_values_in_objects_are_replaced_at_each_depth():
    scrubber = Scrubber()
    scrubber.learn(secret(key="hunter2hunter2"))
    found = scrubber.of({"env": [{"value": "hunter2hunter2", "port": 8, "on": True}], "hunter2hunter2": None})
    assert found == {"env": [{"value": REDACTED, "port": 8, "on": True}], REDACTED: None}


def test_short_and_public_values_stay_readable():
    scrubber = Scrubber()
    scrubber.learn(secret(enabled="true", namespace="kube-system", ca_crt="public-certificate"))
    text = "true in kube-system with public-certificate"
    assert scrubber.text(text) == text


def test_redacted_secret_has_keys_and_lengths_alone():
    found = secret(key="hunter2hunter2") | {"type": "Opaque", "stringData": {"key": "hunter2hunter2"}}
    found["metadata"]["annotations"] = {
        "kubectl.kubernetes.io/last-applied-configuration": '{"data":{"key":"hunter2"}}',
        "kept": "yes",
    }
    shown = redacted(found)
    assert "hunter2" not in json.dumps(shown)
    assert encoded("hunter2hunter2") not in json.dumps(shown)
    assert shown["data"].keys() == {"key"}
    assert shown["metadata"]["annotations"] == {"kept": "yes"}


def test_managed_fields_are_left_out():
    obj = {"metadata": {"name": "a", "managedFields": [{}]}, "spec": {}}
    assert without_bookkeeping(obj) == {"metadata": {"name": "a"}, "spec": {}}


def test_scrubber_without_secrets_changes_nothing():
    assert Scrubber().text("any text") == "any text"
