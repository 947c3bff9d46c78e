"""Steps that touch a seed cluster."""
