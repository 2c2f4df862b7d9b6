"""Holds the code to its size limits: python scripts/size_caps.py DIRECTORY...

A function's lines run from ``def`` to its end, docstring included, decorators not. In every directory 90 %
of the functions have at most 30 lines (nearest rank; bodies of ``...`` are left out), none has more
than 60; no module has more than 400; no function takes more than 5 parameters, not counting ``self`` and
``cls``. Click commands are free of the last rule (there a parameter is an option), and so are tests and
fixtures (there it is a fixture).
"""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

P90_LINES = 30
MAX_LINES = 60
MAX_MODULE_LINES = 400
MAX_PARAMETERS = 5

FREE_DECORATORS = {"argument", "command", "fixture", "group", "option", "pass_context", "pass_obj"}

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Function:
    """One function as measured; ``where`` is path:line name."""

    where: str
    lines: int
    parameters: int
    stub: bool
    free: bool


def last_name(decorator: ast.expr) -> str:
    """``command`` for ``@cli.command("models")``."""
    node = decorator.func if isinstance(decorator, ast.Call) else decorator
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def is_stub(node: FunctionNode) -> bool:
    """True for a protocol's method: nothing but a docstring and ``...``."""
    body = [statement for statement in node.body if not isinstance(statement, ast.Expr)]
    last = node.body[-1]
    return not body and isinstance(last, ast.Expr) and getattr(last.value, "value", None) is Ellipsis


def count_parameters(node: FunctionNode, method: bool) -> int:
    """Parameters a caller sees; the first one of a method is not."""
    spec = node.args
    named = len(spec.posonlyargs) + len(spec.args) + len(spec.kwonlyargs)
    variadic = (spec.vararg is not None) + (spec.kwarg is not None)
    static = any(last_name(decorator) == "staticmethod" for decorator in node.decorator_list)
    return named + variadic - (method and not static)


def functions(tree: ast.AST, path: Path) -> Iterator[Function]:
    """Every function of a module, nested ones too."""
    for parent in ast.walk(tree):
        for node in ast.iter_child_nodes(parent):
            if not isinstance(node, FunctionNode):
                continue
            names = {last_name(decorator) for decorator in node.decorator_list}
            yield Function(
                where=f"{path}:{node.lineno} {node.name}",
                lines=(node.end_lineno or node.lineno) - node.lineno + 1,
                parameters=count_parameters(node, isinstance(parent, ast.ClassDef)),
                stub=is_stub(node),
                free=bool(names & FREE_DECORATORS) or node.name.startswith("test_"),
            )


def ninetieth(lengths: list[int]) -> int:
    """The 90th percentile by nearest rank."""
    return sorted(lengths)[math.ceil(0.9 * len(lengths)) - 1] if lengths else 0


def offences(root: Path) -> Iterator[str]:
    """One line for every broken limit below ``root``."""
    found: list[Function] = []
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        lines = len(text.splitlines())
        if lines > MAX_MODULE_LINES:
            yield f"{path}: {lines} lines, at most {MAX_MODULE_LINES}: split it"
        found.extend(functions(ast.parse(text, str(path)), path))
    for function in found:
        if function.lines > MAX_LINES:
            yield f"{function.where}: {function.lines} lines, at most {MAX_LINES}"
        if function.parameters > MAX_PARAMETERS and not function.free:
            yield f"{function.where}: {function.parameters} parameters, at most {MAX_PARAMETERS}"
    real = [function for function in found if not function.stub]
    p90 = ninetieth([function.lines for function in real])
    if p90 > P90_LINES:
        yield f"{root}: 90th percentile of function lengths: {p90} lines, at most {P90_LINES}; longest:"
        for function in sorted(real, key=lambda each: -each.lines)[:10]:
            yield f"  {function.where}: {function.lines} lines"


def main(arguments: list[str]) -> int:
    """Exit status: 0 all within limits, 1 something is too big, 2 a directory is missing."""
    roots = [Path(argument) for argument in arguments]
    missing = [str(root) for root in roots if not root.is_dir()]
    if missing or not roots:
        print(f"no such directory: {', '.join(missing) or '(none given)'}", file=sys.stderr)
        return 2
    broken = [line for root in roots for line in offences(root)]
    for line in broken:
        print(line)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
