"""What provider-local does for each kind of the extension API. Knows the cloud, not the order of things."""
