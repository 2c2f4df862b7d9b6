"""Shapes of models for planning, from wherever a model lies or from a description of it; no weights are loaded."""

from foredraft.shapes.description import describe
from foredraft.shapes.presets import preset_names
from foredraft.shapes.read import read_shape
from foredraft.shapes.web import Answer, Fetch

__all__ = ["Answer", "Fetch", "describe", "preset_names", "read_shape"]
