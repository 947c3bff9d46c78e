"""Our own processes in control planes and on nodes start quickly, because users wait for them."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module", ["workers.resource_manager", "workers.node_agent", "workers.gateway", "workers.etcd.backup_restore"]
)
def test_a_process_that_runs_no_activity_does_not_load_temporal(module):
    """Loading it would be a third of the start."""
    program = f"import sys, {module}; sys.exit('temporalio' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
