"""Problems that node-problem-detector looks for, and its access to the node."""

import json
import re

import pytest

from activities.components import node_problem_detector

OBJECTS = node_problem_detector.objects("api.example.org")
MONITOR = json.loads(next(each["data"]["kernel-monitor.json"] for each in OBJECTS if each["kind"] == "ConfigMap"))
DAEMON_SET = next(each for each in OBJECTS if each["kind"] == "DaemonSet")
POD = DAEMON_SET["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("message", "reasons"),
    [
        (
            "INFO: task docker:20744 blocked for more than 120 seconds.",
            {("KernelDeadlock", "DockerHung"), ("", "TaskHung")},
        ),
        ("INFO: task jbd2/sda1-8:311 blocked for more than 120 seconds.", {("", "TaskHung")}),
        ("EXT4-fs (sda1): Remounting filesystem read-only", {("ReadonlyFilesystem", "FilesystemIsReadOnly")}),
        ("EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm bash: reading", {("", "Ext4Error")}),
        (
            "Memory cgroup out of memory: Killed process 1012 (heapster) total-vm:128912kB, anon-rss:126520kB, "
            "file-rss:2752kB, shmem-rss:0kB, UID:0 pgtables:300kB oom_score_adj:999",
            {("", "OOMKilling")},
        ),
        ("BUG: unable to handle kernel NULL pointer dereference at 0000000000000018", {("", "KernelOops")}),
        ("BUG: kernel NULL pointer dereference, address: 0000000000000018", {("", "KernelOops")}),
        ("BUG: unable to handle page fault for address: ffffffffc0a3f0e8", {("", "KernelOops")}),
        ("divide error: 0000 [#1] PREEMPT SMP NOPTI", {("", "KernelOops")}),
        ("unregister_netdevice: waiting for lo to become free. Usage count = 2", {("", "UnregisterNetDevice")}),
        ("Buffer I/O error on dev sdb, logical block 0, async page read", {("", "IOError")}),
        ("EXT4-fs (sda1): mounted filesystem with ordered data mode", set()),
    ],
)
def test_complaints_of_a_kernel_are_recognised(message: str, reasons: set[tuple[str, str]]) -> None:
    found = {
        (rule.get("condition", ""), rule["reason"])
        for rule in MONITOR["rules"]
        # To the end, as the detector matches.
        if re.search(rf"(?:{rule['pattern']})\Z", message)
    }

    assert found == reasons


def test_permanent_problems_are_conditions_that_each_node_has_from_the_start() -> None:
    """A rule for a condition that is not declared is passed over in silence."""
    types = {each["type"] for each in MONITOR["conditions"]}

    assert types == {"KernelDeadlock", "ReadonlyFilesystem"}
    assert {rule["condition"] for rule in MONITOR["rules"] if rule["type"] == "permanent"} == types
    assert not any("condition" in rule for rule in MONITOR["rules"] if rule["type"] == "temporary")


def test_a_new_node_does_not_report_messages_of_an_earlier_boot() -> None:
    """Else the machine that replaces one with a fault would be replaced for the same fault."""
    assert (MONITOR["plugin"], MONITOR["lookback"]) == ("kmsg", "0")


def test_the_problem_detector_runs_on_each_node_and_writes_no_files() -> None:
    assert {(each["operator"], each["effect"]) for each in POD["tolerations"]} == {
        ("Exists", "NoSchedule"),
        ("Exists", "NoExecute"),
    }
    assert POD["priorityClassName"] == "system-node-critical"
    assert POD["hostNetwork"] is True
    (container,) = POD["containers"]
    assert container["securityContext"]["privileged"] is True
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    assert [volume["hostPath"]["path"] for volume in POD["volumes"] if "hostPath" in volume] == ["/dev/kmsg"]


def test_the_problem_detector_serves_on_loopback_only() -> None:
    """On a node's network, addresses other than loopback would be reachable for all."""
    (container,) = POD["containers"]

    assert "--prometheus-port=0" in container["command"]
    assert not any(option.startswith("--address") for option in container["command"]), "127.0.0.1 is its default"
    for probe in ("livenessProbe", "readinessProbe"):
        get = container[probe]["httpGet"]
        assert (get["host"], get["port"], get["path"]) == ("127.0.0.1", 20256, "/healthz")


def test_the_problem_detector_has_minimal_rights() -> None:
    (role,) = (each for each in OBJECTS if each["kind"] == "ClusterRole")

    assert {(name, verb) for rule in role["rules"] for name in rule["resources"] for verb in rule["verbs"]} == {
        ("nodes", "get"),
        ("nodes/status", "patch"),
        *(("events", verb) for verb in ("create", "patch", "update")),
    }
