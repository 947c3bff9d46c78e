"""A dump has no value of a Secret, wherever a program has repeated it."""

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
        ("hunter2hunter2", "--password=hunter2hunter2"),
        ("hunter2hunter2", f"data: {encoded('hunter2hunter2')}"),
        ("hunter2hunter2\n", "line before\nhunter2hunter2 and after"),
        (KUBECONFIG, "Authorization: Bearer eyJhbGciOiJFUzI1NiJ9.payload"),
        (PEM, "read MHcCAQEEIBrotherLine1rotherLine1"),
        ("päßwörter-sind-lang", "päßwörter-sind-lang"),
    ],
)
def test_value_is_replaced_in_other_texts(value, shown):
    scrubber = Scrubber()
    assert scrubber.text(shown) == shown
    scrubber.learn(secret(key=value))
    assert REDACTED in scrubber.text(shown)


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
