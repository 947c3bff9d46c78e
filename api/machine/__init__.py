"""Models of machine.sapcloud.io: machines."""
