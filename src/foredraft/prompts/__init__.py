"""Reads the user's prompts from JSONL, CSV, plain text and parquet files, and checks them before anything is measured.

Knows no engine; whether a prompt fits a model's context is the engine's to say.
"""

from foredraft.prompts.prompt import ALL, NO_KIND, Format, Prompt, PromptFile, Unit, chosen
from foredraft.prompts.reading import MAX_BYTES, read_prompts

__all__ = [
    "ALL",
    "MAX_BYTES",
    "NO_KIND",
    "Format",
    "Prompt",
    "PromptFile",
    "Unit",
    "chosen",
    "read_prompts",
]
