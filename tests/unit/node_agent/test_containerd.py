"""containerd's configuration is read, changed and written again without losing what the image has."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.node_agent.containerd import changed_config, to_toml

CRI = "io.containerd.grpc.v1.cri"
PRESENT = f"""\
version = 2
root = "/var/lib/containerd"
disabled_plugins = ["a", "b"]
[plugins."{CRI}"]
sandbox_image = "old"
disable_apparmor = true
[plugins."{CRI}".containerd.runtimes.runc.options]
SystemdCgroup = false
"""

keys = st.sampled_from(["plain", "io.containerd.grpc.v1.cri", 'with "quotes"', "http://h:5000", "ä", " "])
scalars = st.sampled_from(["", "x", 'a "b" \\ \n', "ü", "\x00\x1f"]) | st.integers(-(2**62), 2**62) | st.booleans()
tables = st.recursive(
    st.dictionaries(keys, scalars | st.lists(scalars, max_size=3), max_size=3),
    lambda inner: st.dictionaries(keys, scalars | inner, max_size=3),
    max_leaves=6,
)


@given(tables)
def test_a_written_configuration_reads_back_the_same(document: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(document)) == document


def test_only_configured_settings_change() -> None:
    text = changed_config(PRESENT, {"containerd": {"sandboxImage": "new"}, "cgroupDriver": "systemd"}, {})
    assert text is not None
    changed, before = tomllib.loads(text), tomllib.loads(PRESENT)
    before["plugins"][CRI]["sandbox_image"] = "new"
    before["plugins"][CRI]["containerd"]["runtimes"]["runc"]["options"]["SystemdCgroup"] = True
    assert changed == before


def test_an_unchanged_configuration_causes_no_restart() -> None:
    """containerd restarts for a change, and that interrupts pulls and logs."""
    assert changed_config(PRESENT, {"containerd": {"sandboxImage": "old"}, "cgroupDriver": "cgroupfs"}, {}) is None


def test_an_extension_adds_and_removes_settings_of_plugins() -> None:
    plugins = [
        {"path": [CRI, "containerd", "runtimes", "runsc"], "values": {"runtime_type": "io.containerd.runsc.v1"}},
        {"op": "remove", "path": [CRI, "disable_apparmor"]},
    ]
    text = changed_config(PRESENT, {"containerd": {"sandboxImage": "old", "plugins": plugins}}, {})
    assert text is not None
    cri = tomllib.loads(text)["plugins"][CRI]
    assert cri["containerd"]["runtimes"]["runsc"] == {"runtime_type": "io.containerd.runsc.v1"}
    assert "runc" in cri["containerd"]["runtimes"]
    assert "disable_apparmor" not in cri


def test_a_plugin_that_is_no_longer_wanted_is_removed() -> None:
    runsc = {"path": [CRI, "containerd", "runtimes", "runsc"], "values": {"runtime_type": "io.containerd.runsc.v1"}}
    cri = {"containerd": {"sandboxImage": "old", "plugins": [runsc]}}
    added = changed_config(PRESENT, cri, {})
    assert added is not None
    assert changed_config(added, cri, cri) is None

    removed = changed_config(added, {"containerd": {"sandboxImage": "old", "plugins": []}}, cri)
    assert removed is not None
    assert tomllib.loads(removed) == tomllib.loads(PRESENT)


@pytest.mark.parametrize("path", [[CRI, "no", "such"], ["other"]])
def test_removing_what_is_not_there_changes_nothing(path: list[str]) -> None:
    plugins = [{"op": "remove", "path": path}]
    assert changed_config(PRESENT, {"containerd": {"sandboxImage": "old", "plugins": plugins}}, {}) is None
