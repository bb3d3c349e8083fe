"""Systems that byteps is measured against, each in an environment of its own outside the repository."""
