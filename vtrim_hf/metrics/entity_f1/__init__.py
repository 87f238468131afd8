"""The folder of the `evaluate` module `entity_f1`."""
