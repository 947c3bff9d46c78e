"""Whether the workers of this process report the version of our code to Temporal.

``workers.controller_manager.versioning`` sets it. It is in this package because a sandbox imports the modules of
workflows again: of our modules, it shares only those without state of workflows with the process, like ``api``.
"""

enabled = False
