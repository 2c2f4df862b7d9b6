"""foredraft: exact speculative decoding for large language models on small machines."""

__version__ = "0.1.0"
