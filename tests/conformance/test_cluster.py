"""The kubeconfig of conformance specs."""

from tests.conformance.cluster import by_name


def test_the_api_server_is_named_by_its_host_name() -> None:
    """e2e.test ignores tls-server-name: a gateway would close its connections."""
    address = {"server": "https://198.18.0.2:8443", "tls-server-name": "api.one.example.org", "insecure": False}
    config = {"clusters": [{"name": "a", "cluster": address}, {"name": "b", "cluster": {"server": "https://two:6443"}}]}

    lines = by_name(config)

    assert lines == "198.18.0.2 api.one.example.org\n"
    assert [each["cluster"] for each in config["clusters"]] == [
        {"server": "https://api.one.example.org:8443", "insecure": False},
        {"server": "https://two:6443"},
    ]
