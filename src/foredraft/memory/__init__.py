"""How much memory a target and its draft take: pure arithmetic on shapes. Knows no files, devices or engines."""

from foredraft.memory.lines import DIRTY, MAPPED, Line, Plan, size
from foredraft.memory.model import KV_TYPES, Use, cache_bytes, draft_use, kv_bytes_per_token, model_lines
from foredraft.memory.pair import Member, plan_memory
from foredraft.memory.runtimes import APP, HERE, RUNTIMES, Runtime, runtime_for
from foredraft.memory.shared_head import head_shape

__all__ = [
    "APP",
    "DIRTY",
    "HERE",
    "KV_TYPES",
    "MAPPED",
    "RUNTIMES",
    "Line",
    "Member",
    "Plan",
    "Runtime",
    "Use",
    "cache_bytes",
    "draft_use",
    "head_shape",
    "kv_bytes_per_token",
    "model_lines",
    "plan_memory",
    "runtime_for",
    "size",
]
