"""Temporal's sandbox for workflows, the same in each worker, tool and test."""

from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

_PASSED_THROUGH = ("pydantic", "api", "kube", "etcd", "activities")
"""Modules that the sandbox does not import again for each workflow, because they keep no state of workflows."""


def workflow_runner() -> SandboxedWorkflowRunner:
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*_PASSED_THROUGH))
