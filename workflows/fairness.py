"""Shares of Projects in Temporal's task queues.

If a queue has more tasks than its workers take, Temporal gives each fairness key an equal share of them. So a Project
with thousands of tasks does not delay the tasks of others. Temporal does so only if ``matching.enableFairness`` is set
(docs/operations/install.md).

Activities, child workflows and the next run of a workflow that continues as new inherit the key. So it is set only
where the garden starts a workflow. Workflows that concern no Shoot have the empty key, which is one more share.
"""

from temporalio.common import Priority

from api.contracts.operations import ShootRef


def of_shoot(shoot: ShootRef) -> Priority:
    """The Project's key: its namespace, which never changes.

    No field of the Shoot decides. An extension may choose keys, but only for tasks in its own queue. A user with two
    Projects has two shares. Operators limit that by the users who may create Projects.
    """
    return Priority(fairness_key=shoot.namespace)
