"""The folder of the `evaluate` module `call_match`."""
