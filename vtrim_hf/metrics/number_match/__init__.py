"""The folder of the `evaluate` module `number_match`."""
