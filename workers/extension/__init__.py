"""SDK of extensions: the contract of extension objects, for the extensions of this project and of others."""
