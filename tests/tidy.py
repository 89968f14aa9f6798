"""Reading the project's own source for tests/test_tidy.py: files, functions, imports, and what a
pure file may not do.

Everything here answers with a list of `path:line what` texts; an empty list is tidy. Only the
syntax tree is read: nothing is imported or run.
"""

import ast
import gc
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
CODE: Final = ("libs", "services", "tests", "bench")
# Folders that are not the project's text, beside those that begin with a dot (but .ci is).
SKIPPED: Final = ("__pycache__", "build", "dist", "venv")
TEXT_BYTES_MAX: Final = 1 << 20
SET_MAKERS: Final = ("set", "frozenset")
SET_OPERATORS: Final = (ast.BitOr, ast.BitAnd, ast.BitXor, ast.Sub)
# What gives the elements of its argument in the argument's own order.
ORDER_KEEPERS: Final = (
    "list",
    "tuple",
    "iter",
    "enumerate",
    "map",
    "filter",
    "zip",
    "dict",
    "reversed",
    "join",
    "extend",
    "fromkeys",
)
FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS: Final = (ast.For, ast.AsyncFor, ast.comprehension)


class Function(NamedTuple):
    """A function and how many lines it has, decorators left out."""

    path: str
    name: str
    lines: int


def sources(*folders: str) -> list[Path]:
    """The Python files under these folders of the project, in order."""
    found = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "__pycache__" not in path.parts
    ]
    return sorted(found)


def texts() -> Iterator[tuple[str, str]]:
    """Every file of the project that is text, with its content."""
    for path in sorted(ROOT.rglob("*")):
        inside = path.relative_to(ROOT)
        if (
            not any(map(_is_skipped, inside.parts))
            and path.is_file()
            and path.stat().st_size <= TEXT_BYTES_MAX
        ):
            yield str(inside), path.read_text(errors="replace")


def _is_skipped(part: str) -> bool:
    hidden = part.startswith(".") and part not in (".ci", ".gitignore")
    return hidden or part in SKIPPED or part.endswith(".egg-info")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def tree(path: Path) -> ast.Module:
    """The tree of a file. All are kept, and looking for garbage among them takes four times as long
    as building them.
    """
    gc.disable()
    try:
        return ast.parse(path.read_text(), str(path))
    finally:
        gc.freeze()
        gc.enable()


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file's tree. Walking a tree takes longer than building it."""
    return tuple(ast.walk(tree(path)))


def functions(path: Path) -> list[Function]:
    return [
        Function(name(path), node.name, (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in nodes(path)
        if isinstance(node, FUNCTIONS)
    ]


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def imports(path: Path) -> list[tuple[int, str]]:
    """Every module that the file names in an import, anywhere in it, with its line."""
    found: list[tuple[int, str]] = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found += [(node.lineno, each.name) for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            found += [(node.lineno, module)] + [
                (node.lineno, f"{module}.{each.name}") for each in node.names
            ]
    return found


def imports_of(path: Path, wanted: Callable[[str], bool]) -> list[str]:
    """The imports that `wanted` picks, each line once."""
    return list(
        dict.fromkeys(
            f"{name(path)}:{line} imports {module}"
            for line, module in imports(path)
            if wanted(module)
        )
    )


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def set_loops(path: Path, attributes: frozenset[str] = frozenset()) -> list[str]:
    """Where the file takes the elements of a set in the set's own order, which differs from one
    process to the next.

    Known as sets: displays and comprehensions of sets, `set(...)`, what the operators make of them,
    and names and attributes that are assigned or annotated as such.
    """
    known = attributes | _set_names(tree(path))
    found = []
    for node in nodes(path):
        if isinstance(node, LOOPS):
            found += [node.iter] if _is_set(node.iter, known) else []
        elif isinstance(node, ast.Call) and _called(node) in ORDER_KEEPERS:
            found += [each for each in node.args if _is_set(each, known)]
        elif isinstance(node, ast.Starred | ast.YieldFrom) and _is_set(node.value, known):
            found.append(node.value)
    return [f"{name(path)}:{node.lineno} iterates over a set" for node in found]


def set_attributes(paths: list[Path]) -> frozenset[str]:
    """The names of the fields that these files' classes annotate as sets."""
    bodies = [node.body for path in paths for node in nodes(path) if isinstance(node, ast.ClassDef)]
    fields = [each for body in bodies for each in body if isinstance(each, ast.AnnAssign)]
    return frozenset(_said(field.target) for field in fields if _is_set_type(field.annotation))


def _set_names(module: ast.Module) -> frozenset[str]:
    found: list[str] = []
    for node in ast.walk(module):
        match node:
            case ast.Assign(targets=targets, value=value) if _is_set(value, frozenset()):
                found += [_said(target) for target in targets]
            case ast.AnnAssign(target=target, annotation=annotation) if _is_set_type(annotation):
                found.append(_said(target))
            case ast.arg(arg=arg, annotation=annotation) if annotation is not None and _is_set_type(
                annotation
            ):
                found.append(arg)
            case _:
                pass
    return frozenset(found) - {""}


def _is_set_type(annotation: ast.expr) -> bool:
    outer = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return _said(outer) in ("set", "frozenset", "Set", "AbstractSet", "MutableSet")


def _is_set(node: ast.expr, known: frozenset[str]) -> bool:
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call():
            return isinstance(node.func, ast.Name) and node.func.id in SET_MAKERS
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, SET_OPERATORS):
            return any(_is_set(side, known) or _is_keys(side) for side in (left, right))
        case ast.Name() | ast.Attribute():
            return _said(node) in known
        case _:
            return False


def _is_keys(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "keys"
    )


def _called(node: ast.Call) -> str:
    return _said(node.func)


def _said(node: ast.expr) -> str:
    """The last name of `a`, `self.a` or `a.b.c`; empty for anything else."""
    return (
        node.id
        if isinstance(node, ast.Name)
        else node.attr
        if isinstance(node, ast.Attribute)
        else ""
    )


def float_equalities(path: Path) -> list[str]:
    found = []
    for node in nodes(path):
        if isinstance(node, ast.Compare) and any(
            isinstance(op, ast.Eq | ast.NotEq) for op in node.ops
        ):
            found += [node.lineno] if any(map(_is_float, (node.left, *node.comparators))) else []
    return [f"{name(path)}:{line} compares a float for equality" for line in found]


def _is_float(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=value):
            return isinstance(value, float)
        case ast.BinOp(left=left, op=op, right=right):
            return isinstance(op, ast.Div) or _is_float(left) or _is_float(right)
        case ast.Call(func=ast.Name(id=called)):
            return called == "float"
        case _:
            return False


def wide_catches(path: Path) -> list[str]:
    """`except:`, `except Exception` and `except BaseException`, as `path in function`."""
    found = []
    for function in nodes(path):
        if isinstance(function, FUNCTIONS):
            handlers = [node for node in ast.walk(function) if isinstance(node, ast.ExceptHandler)]
            found += [
                f"{name(path)} in {function.name}" for handler in handlers if _is_wide(handler.type)
            ]
    return found


def forgotten_cancellations(path: Path) -> list[str]:
    """Handlers that catch CancelledError and do not raise it on every way out, as `path in
    function`.
    """
    found = []
    for function in nodes(path):
        if isinstance(function, FUNCTIONS):
            for node in ast.walk(function):
                handler = (
                    isinstance(node, ast.ExceptHandler)
                    and _names_cancellation(node.type)
                    and not _raises(node)
                )
                suppressed = (
                    isinstance(node, ast.Call)
                    and _said(node.func) == "suppress"
                    and any(map(_names_cancellation, node.args))
                )
                if handler or suppressed:
                    found.append(f"{name(path)} in {function.name}")
    return found


def _names_cancellation(caught: ast.expr | None) -> bool:
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(kind is not None and _said(kind) == "CancelledError" for kind in kinds)


def _raises(handler: ast.ExceptHandler) -> bool:
    return isinstance(handler.body[-1], ast.Raise) and handler.body[-1].exc is None


def _is_wide(caught: ast.expr | None) -> bool:
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(kind is None or _said(kind) in ("Exception", "BaseException") for kind in kinds)
