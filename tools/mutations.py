"""Changes of a file's syntax tree, one operator, number or condition at a time, and functions that take them over.

Mutants of code that runs at import, such as the constants of a table, are left out: tests of text and numbers see them.
"""

from __future__ import annotations

import ast
import copy
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

COMPARE = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
BINARY = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "sin": "cos", "cos": "sin", "less": "less_equal"}


@dataclass(frozen=True)
class Mutant:
    """One change of a syntax tree: the number of the node in the order of `ast.walk`, and the change in words."""

    node: int
    what: str
    first: int  # lines of the node
    last: int
    line: str  # the source of its first line

    def __str__(self) -> str:
        return f"{self.first}: `{self.line}` {self.what}"


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield every change of one node, in words, and the changed node, which shares its children."""
    text = ast.unparse(node) if isinstance(node, ast.expr) else ""
    new: Any = copy.copy(node)
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARE:
            new.ops = [COMPARE[type(op)]()]
            yield f"{text} -> {ast.unparse(new)}", new
        case ast.BinOp(op=op, left=left, right=right) if type(op) in BINARY and not _is_text(left, right):
            new.op = BINARY[type(op)]()
            yield f"{text} -> {ast.unparse(new)}", new
        case ast.BoolOp(op=op):
            new.op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield f"{text} -> {ast.unparse(new)}", new
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield f"{text} -> {ast.unparse(operand)}", operand
        case ast.Constant(value=bool(value)):
            new.value = not value
            yield f"{text} -> {new.value}", new
        case ast.Constant(value=int(value) | float(value)):
            new.value = value + 1
            yield f"{text} -> {new.value}", new
        case ast.IfExp(test=test, body=body, orelse=orelse):
            new.body, new.orelse = orelse, body
            yield f"{text} -> {ast.unparse(new)}", new
        case ast.If(test=test) | ast.While(test=test):
            new.test = ast.copy_location(ast.UnaryOp(ast.Not(), test), test)
            yield f"if {ast.unparse(test)} -> if not", new
        case ast.comprehension(ifs=[test]):
            new.ifs = []
            yield f"if {ast.unparse(test)} -> always", new
        case ast.Name(id=name) if name in NAMES and isinstance(node.ctx, ast.Load):
            new.id = NAMES[name]
            yield f"{name} -> {new.id}", new
        case ast.Call(func=ast.Name(id="where"), args=[condition, a, b]):
            new.args = [condition, b, a]
            yield f"{text} -> {ast.unparse(new)}", new
        case _:
            pass


def _is_text(*nodes: ast.AST) -> bool:
    """Return whether a node is text. Joining texts is not arithmetic."""
    return any(
        isinstance(n, ast.JoinedStr) or (isinstance(n, ast.Constant) and isinstance(n.value, str)) for n in nodes
    )


def skipped(tree: ast.Module) -> set[int]:
    """Return nodes to leave out: annotations, decorators, messages of errors, f-strings, and code run at import."""
    out: set[int] = set()

    def skip(node: ast.AST | None) -> None:
        if node is not None:
            out.update(id(n) for n in ast.walk(node))

    def visit(node: ast.AST, inside: bool) -> None:
        if not inside:
            out.add(id(node))
        if isinstance(node, ast.FunctionDef):
            for part in [*node.decorator_list, node.returns, *node.args.defaults, *node.args.kw_defaults]:
                skip(part)
        if isinstance(node, ast.arg | ast.AnnAssign):
            skip(node.annotation)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            out.add(id(node.operand))  # the number with the other sign is a mutant already
        strict = isinstance(node, ast.keyword) and node.arg == "strict"
        if strict or isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
            skip(node)
        deeper = inside or isinstance(node, ast.FunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, deeper)

    visit(tree, False)
    return out


def mutants(source: str) -> list[Mutant]:
    """Return every mutant of a file, in the order of its nodes."""
    tree, lines = ast.parse(source), source.splitlines()
    unwanted = skipped(tree)
    found: list[Mutant] = []
    for k, node in enumerate(ast.walk(tree)):
        if id(node) in unwanted:
            continue
        placed = node.iter if isinstance(node, ast.comprehension) else node
        for what, _ in changes(node):
            first = placed.lineno
            last = first if isinstance(node, ast.If | ast.While) else placed.end_lineno or first
            found.append(Mutant(k, what, first, last, lines[first - 1].strip()))
    return found


def changed(source: str, mutant: Mutant) -> ast.Module:
    """Return the tree of a file with one change."""
    tree = ast.parse(source)
    node = list(ast.walk(tree))[mutant.node]
    ((_, new),) = changes(node)

    class Swap(ast.NodeTransformer):
        def visit(self, other: ast.AST) -> Any:
            return ast.copy_location(new, node) if other is node else self.generic_visit(other)

    if isinstance(node, ast.comprehension):
        node.ifs = []
        return tree
    return ast.fix_missing_locations(Swap().visit(tree))


def functions(code: CodeType) -> Iterator[CodeType]:
    """Yield all code objects inside that of a module."""
    for x in code.co_consts:
        if isinstance(x, CodeType):
            yield x
            yield from functions(x)


def compiled(path: str, tree: ast.Module) -> dict[tuple[str, int], list[CodeType]]:
    """Return the code objects of a file's functions, by name and line. Several lambdas can share both."""
    flags = annotations.compiler_flag
    found: dict[tuple[str, int], list[CodeType]] = {}
    for code in functions(compile(tree, path, "exec", dont_inherit=True, flags=flags)):
        found.setdefault((code.co_qualname, code.co_firstlineno), []).append(code)
    return found


def living(path: str) -> list[FunctionType]:
    """Return all functions of a file that exist now, also those in tables and closures."""
    gc.unfreeze()  # tests/conftest.py hides what collecting made, also from this list
    return [f for f in gc.get_objects() if isinstance(f, FunctionType) and f.__code__.co_filename == path]


def put_in(path: str, source: str, mutant: Mutant, functions: list[FunctionType]) -> int:
    """Give these functions their changed code. Return how many changed."""
    new = compiled(path, changed(source, mutant))
    swap: dict[CodeType, CodeType] = {}
    for name, codes in compiled(path, ast.parse(source)).items():
        swap.update(zip(codes, new[name], strict=True))  # code compares by value, positions included
    known = [f for f in functions if f.__code__ in swap]
    for f in known:
        f.__code__ = swap[f.__code__]
    return len(known)
