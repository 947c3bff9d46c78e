"""The tables of Kubernetes' versions are those of its sources, and its real programs agree with them."""

import asyncio
import shutil

import pytest

from api.kubernetes_versions import Component, release
from landscape.binaries import KUBERNETES_VERSION, kubernetes
from landscape.kubernetes_tables import TABLES, VERSIONS, MissingSources, Sources, file_name, table


@pytest.mark.parametrize("version", VERSIONS)
def test_the_table_of_a_version_is_that_of_its_sources(version):
    """Run ``python -m landscape.kubernetes_tables`` if this fails after a change of a version."""
    if shutil.which("go") is None:
        pytest.skip("the Go command, which knows where sources are, is not on this machine")
    try:
        sources = Sources(version, download=False)
    except MissingSources as missing:
        pytest.skip(f"the sources {missing} are not on this machine")
    assert table(sources) == (TABLES / file_name(version)).read_text()


async def complaint(component: str, gates: dict[str, bool]) -> str:
    """Error output of a component, which ends because its other settings are missing."""
    flag = ",".join(f"{name}={str(value).lower()}" for name, value in gates.items())
    process = await asyncio.create_subprocess_exec(
        kubernetes().directory / component,
        f"--feature-gates={flag}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await asyncio.wait_for(process.communicate(), 30)
    return errors.decode()


@pytest.mark.binaries
@pytest.mark.parametrize("component", [each for each in Component if each is not Component.KUBELET])
async def test_a_real_component_takes_the_gates_of_its_table_and_no_other(component):
    """A kubelet shares its gates with the others, and would become the kubelet of this machine."""
    if not kubernetes().complete:
        pytest.skip("Kubernetes is not compiled on this machine")
    found = release(KUBERNETES_VERSION)
    assert found is not None
    gates = found.gates_of(component)
    told = await complaint(component, {name: gate.default for name, gate in gates.items()})
    assert "feature gate: " not in told
    assert "feature is locked" not in told
    assert "unrecognized feature gate: FooBar" in await complaint(component, {"FooBar": True})
    locked = [name for name, gate in gates.items() if gate.locked]
    told = await complaint(component, {name: not gates[name].default for name in locked})
    assert all(f"cannot set feature gate {name} " in told for name in locked)
    free = {name: not gate.default for name, gate in gates.items() if not gate.locked}
    assert "cannot set feature gate" not in await complaint(component, free)
