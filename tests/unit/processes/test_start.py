"""What a user waits for while a cluster comes up: our own processes in control planes and on nodes start quickly."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module", ["workers.resource_manager", "workers.node_agent", "workers.gateway", "workers.etcd.backup_restore"]
)
def test_a_process_that_runs_no_activity_does_not_load_temporal(module):
    """It would be a third of what the process does until it is ready."""
    program = f"import sys, {module}; sys.exit('temporalio' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
