"""Whether workers of this process say which version of our code they are (``workers.versioning``).

It is here because each workflow is imported anew, in a sandbox that shares nothing of ours with the process but data
(``api``) and activities.
"""

enabled = False
