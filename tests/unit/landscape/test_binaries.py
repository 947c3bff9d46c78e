"""Binaries: where they are looked for, and that nothing unverified is taken."""

import asyncio
import hashlib
import io
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from landscape import binaries
from landscape.binaries import Download, Tool, published_checksum
from landscape.errors import LandscapeError
from landscape.progress import Progress

SILENT = Progress(quiet=True)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setattr(binaries, "BIN_CACHE", tmp_path / "bin")
    return tmp_path / "bin"


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of tools that were built from source."""
    names: list[str] = []

    async def build(tool, target, scratch, progress):
        names.append(tool.name)
        await asyncio.sleep(0)
        for binary in tool.binaries:
            (target / binary).write_text(f"built {binary}")

    monkeypatch.setattr(binaries, "_build", build)
    return names


@pytest.fixture
async def releases(unused_tcp_port_factory):
    """A release host: what it serves, by path."""
    files: dict[str, bytes] = {}

    async def serve(request: web.Request) -> web.Response:
        if request.path not in files:
            raise web.HTTPNotFound
        return web.Response(body=files[request.path])

    app = web.Application()
    app.router.add_get("/{path:.*}", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    port = unused_tcp_port_factory()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    files["url"] = f"http://127.0.0.1:{port}".encode()
    yield files
    await runner.cleanup()


def content(path: str) -> bytes:
    return Path(path).read_bytes()


def tool(*downloads: Download, binaries: tuple[str, ...] = ("thing",)) -> Tool:
    return Tool("thing", "1.0", binaries, Path("/nowhere"), "", downloads)


async def test_a_directory_of_the_user_comes_first(tmp_path, built, monkeypatch):
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "thing").touch()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))

    found = await binaries.ensure((tool(),), SILENT)

    assert found["thing"] == str(tmp_path / "assets" / "thing")
    assert built == []


async def test_a_directory_of_the_user_that_lacks_a_binary_is_not_half_used(tmp_path, built, cache, monkeypatch):
    """A kubelet of one version and an API server of another would be hard to debug."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "thing").touch()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))

    found = await binaries.ensure((tool(binaries=("thing", "other")),), SILENT)

    assert found["thing"] == str(cache / "thing-1.0" / "thing")


async def test_a_cached_binary_is_not_built_again(built):
    await binaries.ensure((tool(),), SILENT)
    await binaries.ensure((tool(),), SILENT)

    assert built == ["thing"]


async def test_a_release_with_its_checksum_is_taken(releases, built):
    url = releases["url"].decode()
    releases["/thing"] = b"content"
    releases["/thing.sha256"] = hashlib.sha256(b"content").hexdigest().encode()

    found = await binaries.ensure((tool(Download(f"{url}/thing", f"{url}/thing.sha256")),), SILENT)

    assert content(found["thing"]) == b"content"
    assert os.access(found["thing"], os.X_OK)
    assert built == []


async def test_a_release_that_does_not_match_its_checksum_is_refused(releases, built, cache):
    url = releases["url"].decode()
    releases["/thing"] = b"tampered"
    releases["/thing.sha256"] = hashlib.sha256(b"content").hexdigest().encode()

    with pytest.raises(LandscapeError, match="does not match the checksum"):
        await binaries.ensure((tool(Download(f"{url}/thing", f"{url}/thing.sha256")),), SILENT)

    assert not (cache / "thing-1.0" / "thing").exists()


async def test_binaries_are_taken_out_of_a_release_archive(releases):
    url = releases["url"].decode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo("thing-v1/thing")
        member.size = 4
        archive.addfile(member, io.BytesIO(b"etcd"))
    releases["/thing.tar.gz"] = packed.getvalue()
    digest = hashlib.sha256(packed.getvalue()).hexdigest()
    releases["/SHA256SUMS"] = f"{'0' * 64}  other.tar.gz\n{digest}  thing.tar.gz\n".encode()
    download = Download(f"{url}/thing.tar.gz", f"{url}/SHA256SUMS", {"thing-v1/thing": "thing"})

    found = await binaries.ensure((tool(download),), SILENT)

    assert content(found["thing"]) == b"etcd"


async def test_without_the_release_host_a_binary_is_built(releases, built):
    url = releases["url"].decode()

    await binaries.ensure((tool(Download(f"{url}/missing", f"{url}/missing.sha256")),), SILENT)

    assert built == ["thing"]


async def test_a_broken_build_leaves_nothing_half_made(cache, monkeypatch):
    async def build(tool, target, scratch, progress):
        (target / "thing").write_text("half")
        raise LandscapeError("building thing 1.0 failed")

    monkeypatch.setattr(binaries, "_build", build)
    with pytest.raises(LandscapeError):
        await binaries.ensure((tool(),), SILENT)

    assert not tool().complete
    assert [entry.name for entry in cache.iterdir() if entry.name != "thing-1.0"] == [".thing-1.0.lock"]


def test_a_multicall_binary_is_linked_under_each_name(cache):
    made = Tool("kubernetes", "9.9.9", ("kubelet", "kube-proxy"), Path("/nowhere"), "kubernetes")
    made.directory.mkdir(parents=True)
    (made.directory / "kubernetes").write_text("binary")

    asyncio.run(binaries.ensure((made,), SILENT))

    assert (made.directory / "kubelet").read_text() == "binary"
    assert (made.directory / "kube-proxy").resolve() == made.directory / "kubernetes"


@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        ("abc", "abc"),
        ("ABC\n", "abc"),
        ("abc  thing.tgz", "abc"),
        ("123  other.tgz\nabc *thing.tgz", "abc"),
        ("abc  release/thing.tgz", "abc"),
    ],
)
def test_checksums_are_read_as_the_projects_publish_them(listing, expected):
    assert published_checksum(listing, "thing.tgz") == expected


def test_a_list_without_the_file_is_an_error():
    with pytest.raises(LandscapeError, match=r"no checksum of thing\.tgz"):
        published_checksum("123  other.tgz", "thing.tgz")


@pytest.mark.parametrize("version", [binaries.KUBERNETES_VERSION, binaries.OLDER_KUBERNETES_VERSION])
def test_all_versions_of_kubernetes_are_built_from_one_program(version, tmp_path):
    made = binaries.kubernetes(version)
    module = binaries._assembled(made, tmp_path)

    assert {file.name for file in module.iterdir()} == {"go.mod", "go.sum", "main.go"}
    assert f"k8s.io/kubernetes v{version}" in (module / "go.mod").read_text()


def test_a_kubernetes_version_without_module_is_answered_with_the_known_ones():
    for version in ("1.12.0", "latest"):
        with pytest.raises(LandscapeError, match=rf"no module for Kubernetes {version} .* 1\.37"):
            binaries.kubernetes(version)


def test_every_pinned_module_is_of_the_version_that_the_image_vector_names():
    """An image named v1.14.7 must hold 1.14.7."""
    for made in binaries.image_tools():
        module = (made.module / "go.mod").read_text()
        pinned = {"prometheus": "0.315.0"}.get(made.name, made.version)  # Go's numbering of 3.15.0
        if made.name not in ("pause", "csi-driver"):  # our own programs
            assert f" v{pinned}\n" in module or f" v{pinned} //" in module, made.name


def test_prometheus_uses_the_kubernetes_libraries_of_the_landscape():
    """It is to know the API of the clusters that it watches."""
    module = (binaries.prometheus().module / "go.mod").read_text()

    for library in ("api", "apimachinery", "client-go"):
        assert f"k8s.io/{library} v0.{binaries.KUBERNETES_VERSION.removeprefix('1.')} " in module


@pytest.fixture
def go(tmp_path, monkeypatch) -> Path:
    """A Go that records its arguments and creates the binary that it has to install; returns its records."""
    notes = tmp_path / "calls"
    program = tmp_path / "path/go"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$*" >> {notes}\nif [ "$1" = install ]; then echo binary > "$GOBIN/thing"; fi\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    return notes


async def test_build_tags_apply_to_listing_and_building(go, tmp_path):
    """Without them the libraries of all clouds are compiled; listed without, progress would never come near its end."""
    made = replace(tool(), module=tmp_path, tags=("without_this", "with_that"), variables={"a/version.Version": "1.0"})

    found = await binaries.ensure((made,), SILENT)

    assert content(found["thing"]) == b"binary\n"
    listed, installed = go.read_text().splitlines()
    assert "-tags without_this,with_that" in listed
    assert "-tags without_this,with_that" in installed
    assert "-ldflags -s -w -X a/version.Version=1.0" in installed


async def test_without_tags_and_variables_none_are_passed(go, tmp_path):
    await binaries.ensure((replace(tool(), module=tmp_path),), SILENT)

    assert "-tags" not in go.read_text()
    assert "-X" not in go.read_text()


async def test_tests_of_a_package_are_compiled_into_a_binary(tmp_path, monkeypatch):
    """The packages that they import come first, because only their compilation reports progress."""
    notes, program = tmp_path / "calls", tmp_path / "path/go"
    program.parent.mkdir()
    program.write_text(f"""#!/bin/sh
echo "$*" >> {notes}
case "$*" in
install*) echo runner > "$GOBIN/runner" ;;
list*-f*) printf 'fmt\\na.b/used\\na.b/also\\n' ;;
test*) shift; while [ "$1" != -o ]; do shift; done; echo tests > "$2" ;;
esac
""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    made = replace(tool(binaries=("runner", "a.test")), module=tmp_path, package="a/runner")
    made = replace(made, tests={"a.test": "a.b/tests"}, variables={"a/version.Version": "1.0"})

    found = await binaries.ensure((made,), SILENT)

    assert content(found["runner"]) == b"runner\n"
    assert content(found["a.test"]) == b"tests\n"
    *_, compiled, linked = notes.read_text().splitlines()
    assert compiled.startswith("build -v ")
    assert compiled.endswith(" all=-dwarf=false a.b/used a.b/also")
    assert linked.startswith("test -c ")
    assert linked.endswith("-ldflags -s -w -X a/version.Version=1.0 a.b/tests")


def test_the_programs_of_the_conformance_tests_are_of_the_landscapes_release():
    """Tests of another release expect another API."""
    for made in (binaries.kubernetes_tests(), binaries.agnhost(), binaries.sample_apiserver()):
        assert (made.version, made.module) == (binaries.KUBERNETES_VERSION, binaries.kubernetes().module)
    assert binaries.kubernetes_tests().variables == binaries.kubernetes().variables


def test_kubernetes_is_built_with_its_version():
    """kubelets and API servers compare versions; one without would be 0.0.0."""
    assert binaries.kubernetes(binaries.KUBERNETES_VERSION).variables == {
        "k8s.io/component-base/version.gitVersion": "v1.37.1",
        "k8s.io/component-base/version.gitMajor": "1",
        "k8s.io/component-base/version.gitMinor": "37",
    }
