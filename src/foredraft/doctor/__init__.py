"""Measures what passes of a target and its drafts take on this machine, and fills a device profile with it.

Knows engines, not files' contents; what the numbers mean is the business of ``devices.verdict``.
"""

from foredraft.doctor.measuring import measure
from foredraft.doctor.settings import QUICK, SAMPLE, DoctorSettings, Loaded, Progress, silent
from foredraft.doctor.store import Found, load_or_measure, loaded_of, subject, subject_of

__all__ = [
    "QUICK",
    "SAMPLE",
    "DoctorSettings",
    "Found",
    "Loaded",
    "Progress",
    "load_or_measure",
    "loaded_of",
    "measure",
    "silent",
    "subject",
    "subject_of",
]
