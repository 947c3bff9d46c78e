"""Code that several processes share; it imports no process."""
