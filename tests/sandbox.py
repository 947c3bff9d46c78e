"""Temporal's sandbox for workflows: it refuses calls whose results may differ in a replay.

Workers run without it (docs/decisions/0029-workers-without-sandbox.md). So tests run each flow in it.
"""

from typing import Any

from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

_PASSED_THROUGH = ("pydantic", "api", "kube", "etcd", "activities")
"""Modules that the sandbox does not import again for each workflow, because they keep no state of workflows."""


class _Runner(SandboxedWorkflowRunner):
    """Tries each workflow only once whether it runs in the sandbox: all tests' workers have the same."""

    def __init__(self) -> None:
        super().__init__(restrictions=SandboxRestrictions.default.with_passthrough_modules(*_PASSED_THROUGH))
        self._prepared: set[type] = set()

    def prepare_workflow(self, defn: Any) -> None:
        if defn.cls not in self._prepared:
            super().prepare_workflow(defn)
            self._prepared.add(defn.cls)


SANDBOX = _Runner()
