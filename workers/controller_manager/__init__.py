"""The controller-manager: workflows of Shoots and seeds, their watchers, and the controllers of the garden."""
