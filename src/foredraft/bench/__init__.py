"""Speculation against plain decoding, measured: arms in turns on many prompts, ratios with intervals, raw numbers kept.

Knows nothing about terminals; how arms become controllers is the caller's.
"""
