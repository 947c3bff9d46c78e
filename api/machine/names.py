"""Labels, annotations and keys by which the components that handle machines find each other's objects."""

from typing import Final

NAME_LABEL: Final = "name"
"""Label of MachineDeployments, MachineSets and Machines: name of the MachineDeployment. Their selectors use it."""
NODE_LABEL: Final = "node"
"""Label of a Machine: name of its node."""
FORCE_DELETION_LABEL: Final = "force-deletion"
"""Label of a Machine; value ``True``: delete the machine without a drain of its node."""
PRIORITY: Final = "machinepriority.machine.sapcloud.io"
"""Annotation of a Machine: if its MachineSet has too many machines, a lower value is deleted first."""
FIRST_TO_GO: Final = "1"
"""Lowest value of ``PRIORITY``."""
TRIGGER_DELETION: Final = "node.machine.sapcloud.io/trigger-deletion-by-mcm"
"""Annotation of a MachineDeployment: machines that the cluster autoscaler chose for deletion, comma-separated."""
USER_DATA_KEY: Final = "userData"
"""Key of a MachineClass's Secret: the script that a machine boots with."""
