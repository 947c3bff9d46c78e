import pytest

from api import resources
from api.decisions.credentials import BINDINGS, Credentials, binding_of


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"credentialsBindingName": "a"}, (resources.CREDENTIALS_BINDING, "a")),
        ({"secretBindingName": "b"}, (resources.SECRET_BINDING, "b")),
        ({"credentialsBindingName": "", "secretBindingName": "b"}, (resources.SECRET_BINDING, "b")),
        ({}, None),
    ],
)
def test_a_shoot_uses_the_binding_that_it_names(spec, expected):
    bound = binding_of({"spec": spec})

    assert (bound and (bound[0].resource, bound[1])) == expected


def test_a_binding_means_a_secret_of_its_own_namespace_unless_it_says_otherwise():
    metadata = {"name": "cloud", "namespace": "garden-dev"}
    identity = {"apiVersion": "security.gardener.cloud/v1alpha1", "kind": "WorkloadIdentity"}
    elsewhere = {**identity, "name": "key", "namespace": "garden-keys"}

    plain = BINDINGS[resources.SECRET_BINDING].credentials({"metadata": metadata, "secretRef": {"name": "key"}})
    told = BINDINGS[resources.CREDENTIALS_BINDING].credentials({"metadata": metadata, "credentialsRef": elsewhere})

    assert plain == Credentials("v1", "Secret", "garden-dev", "key")
    assert str(told) == "WorkloadIdentity garden-keys/key"
