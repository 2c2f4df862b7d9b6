"""Adapters that guess tokens cheaply: one protocol (``base``), several drafters."""
