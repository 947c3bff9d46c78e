"""Activities that make the control plane of a self-hosted Shoot on one of its own machines."""
