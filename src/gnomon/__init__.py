"""Gnomon: serve block-sparse-attention models with 4-bit caches, and prove every number.

The package has two halves that meet only over HTTP: :mod:`gnomon.engine` (the inference
server) and :mod:`gnomon.harness` (runs a recipe against any engine and keeps the evidence).
"""

__version__ = "0.1.0"
