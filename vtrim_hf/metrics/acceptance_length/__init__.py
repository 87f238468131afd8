"""The folder of the `evaluate` module `acceptance_length`."""
