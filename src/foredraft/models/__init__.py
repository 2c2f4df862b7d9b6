"""Decoder-only transformers in torch: one family for export, the pytorch engine and training."""
