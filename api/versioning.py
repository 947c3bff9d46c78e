"""Whether the workers of this process report the version of our code to Temporal (``controller_manager.versioning``).

It is in this package because a sandbox imports the modules of workflows again: of our modules, it shares only ``api``
and activities with the process.
"""

enabled = False
