"""The error tree. Every error is one clear line: the value, what is allowed, and the fix.

::

    ForedraftError                 exit code 1: something failed while running
    ├── UsageError                 exit code 2: the user asked for something impossible
    │   ├── InvalidValue           a setting outside its range
    │   ├── UnknownName            no model / engine / drafter of that name ("did you mean")
    │   ├── MissingExtra           the adapter's package is not installed
    │   ├── ModelFileError         missing, truncated, foreign or damaged model file
    │   ├── ProfileError           a device profile, a device file or a profile summary that is damaged
    │   ├── TraceError             a profile's trace that is damaged, of another schema, or cannot answer
    │   ├── TrainingDataError      texts, states or a checkpoint to train with that are damaged or do not fit
    │   ├── PairMismatch           target and draft cannot speak to each other
    │   └── PromptError            empty or too long a prompt, a broken chat template or file of prompts
    ├── NotExactError              an exported program failed its bit check (``export``)
    ├── ShortOfResourcesError      memory or disk are too small for an export (``export``)
    ├── PullError                  a download failed or its checksum is wrong
    ├── ContextFull                the session has no room for the tokens it was given
    └── EngineFailure              native code reported an error; only ``close()`` is legal after it

The module knows nothing about who raises what; the command line turns ``exit_code`` into its own.
"""

from __future__ import annotations


class ForedraftError(Exception):
    """Root of all errors foredraft raises on purpose; ``str(error)`` is one line for the user."""

    exit_code = 1


class UsageError(ForedraftError):
    """The request itself cannot be met."""

    exit_code = 2


class InvalidValue(UsageError):
    """A setting is outside its allowed range."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(f"{name} is {value!r}; allowed: {allowed}")
        self.name, self.value, self.allowed = name, value, allowed


class UnknownName(UsageError):
    """A name that no registry knows."""


class MissingExtra(UsageError):
    """An adapter's package is not installed; the message holds the command that installs it."""


class ModelFileError(UsageError):
    """A model file is missing, truncated, foreign or damaged."""


class ProfileError(UsageError):
    """A device profile, a user's device file or a profile's summary is damaged, foreign, or of another schema
    version."""


class TraceError(UsageError):
    """The trace of a profile is damaged, foreign, of another schema version, or cannot answer what is asked."""


class TrainingDataError(UsageError):
    """Texts, states or a checkpoint that a draft is trained with are damaged, foreign, or made for something else."""


class PairMismatch(UsageError):
    """Target and draft break one or more compatibility rules."""


class PromptError(UsageError):
    """The prompt is empty, longer than the context, or its chat template fails."""


class PullError(ForedraftError):
    """A download failed; nothing half-written is left under the final name."""


class ContextFull(ForedraftError):
    """A session was asked to hold more tokens than its context has room for."""


class EngineFailure(ForedraftError):
    """Native code reported an error. The session must be closed."""
