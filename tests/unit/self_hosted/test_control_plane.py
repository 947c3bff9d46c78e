"""The control plane of a self-hosted Shoot: static pods, secrets and a kubelet, all made on its machine."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from activities.components import apiserver
from activities.components.static_pod import FILES, StaticPod
from activities.secrets.configs import (
    Certificate,
    CertificateAuthority,
    EncryptionConfiguration,
    KeyAlgorithm,
    Making,
    Usage,
)
from activities.secrets.crypto import KeyPair, validity_of
from activities.self_hosted import control_plane
from activities.self_hosted.backup import place
from activities.self_hosted.init import SelfHostedActivities
from activities.self_hosted.secrets import FileSecrets
from api.contracts.self_hosted import InitTask, InvalidManifest, Machine, SelfHostedManifest
from kube.errors import ApiError
from tests.unit.api.shoots import changed
from workers.cli import shoot_init
from workers.cli.shoot import shoot

MANIFEST: dict[str, Any] = {
    "apiVersion": "core.gardener.cloud/v1beta1",
    "kind": "Shoot",
    "metadata": {"name": "alone", "namespace": "garden-local"},
    "spec": {
        "kubernetes": {"version": "1.37.1"},
        "dns": {"domain": "alone.example.org"},
        "provider": {"type": "local", "workers": [{"name": "cp", "controlPlane": {}}]},
    },
}

DNS: dict[str, Any] = {
    "domain": "alone.example.org",
    "providers": [{"type": "local", "primary": True, "credentialsRef": {"kind": "Secret", "name": "zone"}}],
}
NAMED = changed(changed(MANIFEST, "spec.dns", DNS), "spec.provider.workers.0.controlPlane", {"exposure": {"dns": {}}})
"""Exposed by a DNS record."""

BACKUP: dict[str, Any] = {
    "provider": "local",
    "credentialsRef": {"apiVersion": "v1", "kind": "Secret", "namespace": "garden-local", "name": "backup"},
}


@pytest.fixture
def task(tmp_path: Path) -> InitTask:
    machine = Machine(node="alone-1", address="198.18.8.7")
    return InitTask(directory=tmp_path, shoot=SelfHostedManifest.read(MANIFEST), machine=machine)


@pytest.fixture
def secrets(task: InitTask) -> FileSecrets:
    made = FileSecrets(task.directory / "secrets")
    for each in control_plane.authorities():
        made.ensure(each)
    made.ensure(EncryptionConfiguration(control_plane.ENCRYPTION, keys=(made.get(control_plane.ENCRYPTION_KEY),)))
    for each in control_plane.certificates(task, made.get("ca")["ca.crt"]):
        made.ensure(each)
    return made


@pytest.fixture
def pods(task: InitTask, secrets: FileSecrets) -> dict[str, StaticPod]:
    return {each.name: each for each in control_plane.pods(task, secrets.all())}


def flags(pod: StaticPod) -> list[str]:
    container = pod.manifest["spec"]["containers"][0]
    return list(container["command"])


def test_no_pod_needs_an_api_server(pods: dict[str, StaticPod]) -> None:
    """A kubelet refuses a static pod that refers to another object."""
    of_kubernetes = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"]
    assert list(pods) == ["etcd-main", *of_kubernetes, "self-hosted-controller"]
    for pod in pods.values():
        spec = pod.manifest["spec"]
        assert pod.manifest["metadata"]["namespace"] == "kube-system"
        assert spec["hostNetwork"]
        assert "serviceAccountName" not in spec
        for volume in spec["volumes"]:
            assert volume.keys() - {"name"} <= {"hostPath", "emptyDir"}, volume


def test_each_mounted_directory_has_its_files(pods: dict[str, StaticPod]) -> None:
    for pod in pods.values():
        directories = {
            each["hostPath"]["path"] for each in pod.manifest["spec"]["volumes"] if each.get("hostPath", {}).get("type")
        }
        ours = {each for each in directories if each.startswith(FILES)}
        assert {"/".join(path.split("/")[: FILES.count("/") + 3]) for path in pod.files} == ours


def test_each_file_that_a_flag_names_is_mounted(pods: dict[str, StaticPod]) -> None:
    for pod in pods.values():
        container = pod.manifest["spec"]["containers"][0]
        places = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        volumes = {each["name"]: each for each in pod.manifest["spec"]["volumes"]}
        there = {
            path.replace(volumes[name]["hostPath"]["path"], place)
            for name, place in places.items()
            for path in pod.files
            if "hostPath" in volumes[name] and path.startswith(f"{volumes[name]['hostPath']['path']}/")
        }
        values = [each.partition("=")[2] for each in flags(pod)]
        named = {each for each in values if each.startswith(("/srv", "/var/etcd/tls"))}
        assert named <= there, named - there


def test_etcd_finds_each_file_that_its_configuration_names(task: InitTask, secrets: FileSecrets) -> None:
    secrets.keep("etcd-backup", {"accessKeyID": b"key"})
    [etcd, *_] = control_plane.pods(task, secrets.all(), place(task))
    mounts = {
        each["mountPath"]: volume["hostPath"]["path"]
        for container in etcd.manifest["spec"]["containers"]
        for each in container["volumeMounts"]
        for volume in etcd.manifest["spec"]["volumes"]
        if volume["name"] == each["name"] and "hostPath" in volume
    }
    named = {each for text in etcd.files.values() for each in re.findall(r'"(/var/etcd/tls/[^"]+)"', text.decode())}
    assert len(named) == 8
    for each in named:
        assert each.replace("/var/etcd/tls", mounts["/var/etcd/tls"]) in etcd.files
    assert f"{mounts['/var/etcd/backup']}/accessKeyID" in etcd.files


def test_the_api_server_uses_the_etcd_beside_it_and_no_tunnel(pods: dict[str, StaticPod]) -> None:
    found = flags(pods["kube-apiserver"])
    assert "--etcd-servers=https://127.0.0.1:2379" in found
    assert "--advertise-address=198.18.8.7" in found
    assert not [each for each in found if each.startswith(("--egress", "--endpoint-reconciler", "--etcd-servers-over"))]


def test_an_api_server_in_a_seed_stays_as_it_was() -> None:
    names = apiserver.Secrets(*("s" for _ in range(11)))
    services = ("100.64.0.0/13",)
    seed = apiserver.ApiServer(
        namespace="n",
        version="1.37.1",
        replicas=1,
        external_hostname="h",
        issuer="i",
        service_cidrs=services,
        secrets=names,
    )
    [deployment] = [each for each in apiserver.objects(seed) if each["kind"] == "Deployment"]
    command = deployment["spec"]["template"]["spec"]["containers"][0]["command"]
    assert "--endpoint-reconciler-type=none" in command
    assert f"--advertise-address={apiserver.ADVERTISE_ADDRESS}" in command
    assert "--etcd-servers-overrides=/events#https://etcd-events-client:2379" in command


def test_secrets_are_made_once_and_readable_by_root_alone(task: InitTask, secrets: FileSecrets) -> None:
    before = secrets.all()
    for each in (*control_plane.authorities(), *control_plane.certificates(task, secrets.get("ca")["ca.crt"])):
        secrets.ensure(each)

    assert secrets.all() == before
    files = [each for each in (task.directory / "secrets").rglob("*") if each.is_file()]
    assert {each.stat().st_mode & 0o777 for each in files} == {0o600}
    assert {each.stat().st_mode & 0o777 for each in (task.directory / "secrets").iterdir()} == {0o700}


def test_a_bundle_that_a_killed_run_did_not_make_is_made_by_the_next(tmp_path: Path) -> None:
    secrets = FileSecrets(tmp_path)
    secrets.ensure(CertificateAuthority("ca"))
    (tmp_path / "ca-bundle/bundle.crt").unlink()
    (tmp_path / "ca-bundle").rmdir()

    secrets.ensure(CertificateAuthority("ca"))
    assert secrets.get("ca-bundle")["bundle.crt"] == secrets.get("ca")["ca.crt"]


def test_a_directory_that_a_killed_run_left_unfinished_is_no_secret(tmp_path: Path) -> None:
    (tmp_path / ".unfinished").mkdir()
    secrets = FileSecrets(tmp_path)
    secrets.ensure(CertificateAuthority("ca"))
    assert secrets.all().keys() == {"ca", "ca-bundle"}


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("spec.hibernation", {"enabled": True}, "spec.hibernation: gardener shoot init does not offer this field"),
        ("spec.kubernetes.kubeAPIServer", {}, "kubeAPIServer: gardener shoot init does not offer"),
        ("spec.provider.workers.0.controlPlane.backup", {"provider": "local"}, "backup.credentialsRef: Field required"),
        ("spec.provider.workers.0.controlPlane.backup", BACKUP | {"provider": "aws"}, "Input should be 'local'"),
        (
            "spec.provider.workers.0.controlPlane.backup",
            BACKUP | {"providerConfig": {}},
            "providerConfig: gardener shoot",
        ),
        ("spec.provider.workers.0.controlPlane.exposure", {"dns": {}}, "exposure.dns needs an entry of dns.providers"),
        ("spec.provider.workers.0.controlPlane.exposure", {}, "exactly one of extension and dns must be set"),
        (
            "spec.provider.workers.0.controlPlane.exposure",
            {"dns": {}, "extension": {}},
            "exactly one of extension and dns must be set",
        ),
        ("spec.dns", DNS, "dns.providers has an effect with exposure.dns alone"),
        ("spec.provider.workers.0.controlPlane.exposure", {"extension": {"type": "x"}}, "Input should be 'local'"),
        ("spec.provider.workers.0.maximum", 0, "maximum: Input should be greater than or equal to 1"),
        ("spec.provider.workers.0.minimum", 2, "minimum: Input should be 1"),
        ("spec.provider.workers", [{"name": "cp"}], "exactly one pool must have controlPlane"),
        ("spec.provider.workers", [{"name": "cp", "controlPlane": {}}, {"name": "cp"}], "different names"),
        ("spec.networking", {"type": "calico"}, "networking.type: Input should be 'flannel'"),
        ("spec.networking", {"pods": "10.0.0.0/8", "services": "10.1.0.0/16"}, "must not overlap"),
        ("spec.networking", {"pods": "fd00::/48"}, "networking.pods"),
        ("spec.dns.domain", "../evil", "dns.domain"),
        ("spec.dns.domain", "a..example.org", "dns.domain"),
        ("metadata.name", "../../etc", "metadata.name"),
        ("metadata.namespace", "default", "metadata.namespace"),
        ("spec.kubernetes.version", "1.37.1/../..", "kubernetes.version"),
    ],
)
def test_a_field_works_or_is_refused(path: str, value: object, told: str) -> None:
    with pytest.raises(InvalidManifest) as refused:
        SelfHostedManifest.read(changed(MANIFEST, path, value))
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("type", "aws-route53", "type: Input should be 'local'"),
        ("primary", False, "primary: Input should be True"),
        ("secretName", "zone", "secretName: gardener shoot init does not offer this field"),
        ("domains", {"include": ["example.org"]}, "domains: gardener shoot init does not offer this field"),
        ("zones", {"include": ["example.org"]}, "zones: gardener shoot init does not offer this field"),
        ("credentialsRef.kind", "WorkloadIdentity", "credentialsRef.kind: Input should be 'Secret'"),
        ("credentialsRef.namespace", "garden", "namespace: gardener shoot init does not offer this field"),
    ],
)
def test_a_field_of_a_dns_provider_works_or_is_refused(path: str, value: object, told: str) -> None:
    with pytest.raises(InvalidManifest) as refused:
        SelfHostedManifest.read(changed(NAMED, f"spec.dns.providers.0.{path}", value))
    assert told in str(refused.value)


def test_two_dns_providers_are_refused() -> None:
    with pytest.raises(InvalidManifest, match="at most 1 item"):
        SelfHostedManifest.read(changed(NAMED, "spec.dns.providers", [*DNS["providers"], *DNS["providers"]]))


def test_a_machine_with_the_manifest_of_an_earlier_version_has_the_same_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier version has written the file without the fields of this one."""
    monkeypatch.setattr(shoot_init, "STATE", tmp_path)
    (tmp_path / "shoot.json").write_text(json.dumps(MANIFEST))
    shoot_init._keep(SelfHostedManifest.read(MANIFEST))
    with pytest.raises(click.ClickException, match="another manifest"):
        shoot_init._keep(SelfHostedManifest.read(NAMED))


@pytest.mark.parametrize("manifest", [MANIFEST, NAMED], ids=["not-exposed", "named"])
def test_the_controller_of_a_named_shoot_knows_its_record(
    task: InitTask, secrets: FileSecrets, manifest: dict[str, Any]
) -> None:
    named = task.model_copy(update={"shoot": SelfHostedManifest.read(manifest)})
    *_, controller = control_plane.pods(named, secrets.all())
    [config] = [each for path, each in controller.files.items() if path.endswith("config.yaml")]
    wanted = ("", "alone-external" if manifest is NAMED else "")
    assert (json.loads(config)["exposure"], json.loads(config)["dnsRecord"]) == wanted


def at(day: int) -> Callable[[], datetime]:
    return lambda: datetime(2026, 11, 1, tzinfo=UTC) + timedelta(days=day)


MONTH = timedelta(days=30)
SERVER = Certificate(name="server", common_name="server", usage=Usage.SERVER, signer="ca", validity=MONTH)


def test_a_certificate_is_renewed_after_80_percent_of_its_validity_and_an_authority_never(tmp_path: Path) -> None:
    authority = CertificateAuthority("ca")
    first, early, late = (FileSecrets(tmp_path, at(day)) for day in (0, 19, 25))
    made = [first.ensure(authority), first.ensure(SERVER)]
    assert [early.ensure(authority), early.ensure(SERVER)] == made
    assert not early.ends_soon(SERVER)

    assert late.ends_soon(SERVER)
    assert not late.ends_soon(authority)
    assert late.ensure(authority) == made[0]
    renewed = late.ensure(SERVER)
    assert renewed["tls.key"] != made[1]["tls.key"]
    assert validity_of(renewed["tls.crt"])[1] == validity_of(made[1]["tls.crt"])[1] + timedelta(days=25)
    assert late.all().keys() == {"ca", "ca-bundle", "server"}
    assert not late.ends_soon(SERVER)


def test_a_certificate_of_an_earlier_version_is_renewed_though_it_is_valid_for_years(tmp_path: Path) -> None:
    for each in (CertificateAuthority("ca"), replace(SERVER, validity=timedelta(days=3000))):
        FileSecrets(tmp_path, at(0)).ensure(each)
    assert not FileSecrets(tmp_path, at(19)).ends_soon(SERVER)
    assert FileSecrets(tmp_path, at(25)).ends_soon(SERVER)


def test_a_certificate_that_ends_with_its_authority_is_not_renewed(tmp_path: Path) -> None:
    """The next one would end then, too: it would be renewed each day."""
    FileSecrets(tmp_path, at(0)).ensure(CertificateAuthority("ca"))
    FileSecrets(tmp_path, at(3630)).ensure(SERVER)
    assert not FileSecrets(tmp_path, at(3649)).ends_soon(SERVER)
    # Longer ones, as those of servers, are valid as long as the authority.
    long = Certificate(name="long", common_name="long", usage=Usage.SERVER, signer="ca")
    FileSecrets(tmp_path, at(0)).ensure(long)
    assert not FileSecrets(tmp_path, at(3600)).ends_soon(long)


@pytest.mark.parametrize("dying", [(Path, "rename"), (shutil, "rmtree")], ids=["rename", "rmtree"])
def test_a_renewal_that_was_killed_is_done_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dying: tuple[object, str]
) -> None:
    FileSecrets(tmp_path, at(0)).ensure(CertificateAuthority("ca"))
    before = FileSecrets(tmp_path, at(0)).ensure(SERVER)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(*dying, dies)
        with pytest.raises(KeyboardInterrupt):
            FileSecrets(tmp_path, at(25)).ensure(SERVER)
    after = FileSecrets(tmp_path, at(25)).ensure(SERVER)
    assert after.keys() == before.keys()
    assert after["tls.crt"] != before["tls.crt"]


def test_a_renewal_starts_pods_with_clients_again_and_neither_the_api_server_nor_etcd(
    task: InitTask, secrets: FileSecrets, pods: dict[str, StaticPod]
) -> None:
    later = FileSecrets(task.directory / "secrets", lambda: datetime.now(UTC) + timedelta(days=25))
    certificates = control_plane.certificates(task, secrets.get("ca")["ca.crt"])
    due = {each.name for each in certificates if later.ends_soon(each)}
    clients = {"kube-controller-manager", "kube-scheduler", "self-hosted-controller"}
    assert due == {*clients, "kubelet", "kubelet-server"}
    for each in certificates:
        later.ensure(each)
    after = control_plane.pods(task, later.all())
    assert {each.name for each in after if each.manifest != pods[each.name].manifest} == clients
    assert {each.name for each in after if each.files != pods[each.name].files} == clients


@pytest.fixture
def ran(task: InitTask, secrets: FileSecrets, monkeypatch: pytest.MonkeyPatch) -> list[InitTask]:
    """The renewals that ``gardener shoot renew`` has run on this machine."""
    found: list[InitTask] = []

    async def run(task: InitTask, tell: object) -> None:
        found.append(task)
        assert (task.directory / "renewing").exists()

    (task.directory / "shoot.json").write_text(task.shoot.model_dump_json())
    monkeypatch.setattr(shoot_init, "STATE", task.directory)
    monkeypatch.setattr(shoot_init, "must_be_machine", lambda: None)
    monkeypatch.setattr(shoot_init, "this_machine", lambda: task.machine)
    monkeypatch.setattr(shoot_init, "run_renewal", run)
    return found


def test_a_renewal_runs_if_a_certificate_ends_soon(task: InitTask, ran: list[InitTask]) -> None:
    done = CliRunner().invoke(shoot_init.renew)
    assert "no certificate ends soon" in done.output
    assert not ran

    (task.directory / "secrets/admin/tls.crt").write_bytes(_old_certificate(task))
    done = CliRunner().invoke(shoot_init.renew)
    assert done.exit_code == 0
    assert ran == [task]
    assert not (task.directory / "renewing").exists()


def test_a_renewal_that_was_killed_goes_on_though_all_certificates_are_new(task: InitTask, ran: list[InitTask]) -> None:
    (task.directory / "renewing").touch()
    CliRunner().invoke(shoot_init.renew)
    assert ran == [task]


def test_a_machine_without_a_control_plane_renews_nothing(ran: list[InitTask], task: InitTask) -> None:
    (task.directory / "shoot.json").unlink()
    for command in (shoot_init.renew, shoot_init.repair):
        done = CliRunner().invoke(command)
        assert "this machine has no control plane" in done.output
        assert done.exit_code == 1


def test_a_repair_of_a_cluster_that_does_not_answer_fails_with_the_reason(
    task: InitTask, ran: list[InitTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreachable(_: object) -> None:
        raise ApiError(0, "connection refused", "reading ConfigMap kube-system/self-hosted-system")

    monkeypatch.setattr(SelfHostedActivities, "repair_self_hosted_system", unreachable)
    done = CliRunner().invoke(shoot_init.repair)
    assert "connection refused" in done.output
    assert done.exit_code == 1


def test_timers_run_commands_that_exist() -> None:
    names = {"gardener-shoot-renew", "gardener-shoot-repair"}
    units = control_plane.timers()
    assert units.keys() == {f"/etc/systemd/system/{name}.{kind}" for name in names for kind in ("service", "timer")}
    for path, (content, mode) in units.items():
        assert mode == 0o644
        if path.endswith(".service"):
            [command] = [line for line in content.decode().splitlines() if line.startswith("ExecStart=")]
            assert command.split()[1:] == ["shoot", path.removesuffix(".service").rpartition("-")[2]]
            assert command.split()[2] in shoot.commands


def _old_certificate(task: InitTask) -> bytes:
    """Certificate of the administrator, made a year ago."""
    secrets = FileSecrets(task.directory / "secrets")
    [config] = [each for each in control_plane.certificates(task, b"") if each.name == "admin"]
    signer = secrets.get("ca-client")
    ca = KeyPair(signer["ca.crt"], signer["ca.key"])
    return config.make(Making("admin", datetime.now(UTC) - timedelta(days=364), KeyAlgorithm.P256, ca))["tls.crt"]
