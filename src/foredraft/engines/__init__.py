"""Adapters that run a model: one protocol (``base``), several engines."""
