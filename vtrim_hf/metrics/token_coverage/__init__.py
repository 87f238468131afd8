"""The folder of the `evaluate` module `token_coverage`."""
