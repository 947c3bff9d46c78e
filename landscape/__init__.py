"""The local landscape: a real cloud on one Linux machine."""
