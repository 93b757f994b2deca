"""The house rules, read from the source: sizes, names, arrows without cycles, and what no file may do."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

pytestmark = pytest.mark.no_cover
HOME = Path(__file__).parents[2]
ROOMS = ("topologies", "sim", "executor", "reports")
LONGEST_FILE = 350
LONGEST_FUNCTION = 60
"""Lines, docstring and signature included."""
NAMELESS = {"utils", "util", "helpers", "helper", "common", "misc", "tools", "stuff", "shared", "lib", "core", "base", "manager"}
"""A helper without a noun belongs to its only caller."""
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib.numpy_pickle"}
RUN = {"eval", "exec", "compile", "__import__", "execfile"}
OWN_CELLS = {"reports/example.py"}
"""Runs the cells of the example notebook, which stand in the file itself: it takes no code from outside."""
LISTENERS = {"http.server", "socketserver", "xmlrpc", "asyncio", "aiohttp", "flask", "uvicorn", "tornado"}
LISTEN = {"listen", "create_server", "start_server", "serve_forever", "HTTPServer", "ThreadingHTTPServer"}
ANYWHERE = {"0.0.0.0", "::", "[::]"}

SILENT = {
    "executor/players/inline.py: InlinePlayer.run",
    "executor/players/lanes.py: ThreadLane.communicate",
    "executor/players/lanes.py: ThreadLane.drain",
    "executor/players/lanes.py: ThreadLane.record",
    "sim/accuracy/refit.py: Clocks.error",
    "sim/accuracy/refit.py: Response.error",
    "sim/cost/attention.py: fits",
    "sim/cost/conv.py: ConvFit",
    "sim/cost/cpu_pricer.py: CpuPricer.local",
    "sim/cost/fit/attention.py: main",
    "sim/cost/fit/attention.py: work_of",
    "sim/cost/fit/data.py: AttentionRow",
    "sim/cost/fit/data.py: GemmRow",
    "sim/cost/fit/gemm.py: main",
    "sim/cost/fit/memory.py: main",
    "sim/cost/gemm.py: fits",
    "sim/cost/gpu_pricer.py: GpuPricer.collective",
    "sim/cost/memory_bound.py: Cache",
    "sim/cost/memory_bound.py: fits",
    "sim/cost/tables.py: Grid.at",
    "sim/lower/data_parallel/replicate.py: lane_of",
    "sim/lower/ops.py: blocks",
    "sim/lower/ops.py: host",
    "sim/lower/ops.py: record",
    "sim/lower/step.py: Place.name",
    "sim/lower/optimizer/modes.py: server_calls",
}
"""Public and still without a docstring. The list may only shrink."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def files() -> list[Path]:
    """Every source file of the four rooms and the face."""
    return [HOME / "steptwin.py", *(path for room in ROOMS for path in sorted((HOME / room).rglob("*.py")))]


@cache
def tree(path: Path) -> ast.Module:
    """The file, parsed."""
    return ast.parse(path.read_text("utf-8"))


def name(path: Path) -> str:
    """`sim/cost/price.py`."""
    return path.relative_to(HOME).as_posix()


def module(path: Path) -> str:
    """`sim.cost.price`; a package by its own name."""
    parts = path.relative_to(HOME).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> frozenset[str]:
    """The names of all files."""
    return frozenset(map(module, files()))


def _called(node: ast.AST) -> str:
    return _own_name(node.func) if isinstance(node, ast.Call) else ""


def _own_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def nodes(kind: type[ast.AST] | tuple[type[ast.AST], ...]) -> Iterator[tuple[Path, ast.AST]]:
    """All nodes of a kind in all files."""
    for path in files():
        for node in ast.walk(tree(path)):
            if isinstance(node, kind):
                yield path, node


def test_there_is_a_house() -> None:
    assert len(files()) > 150


def test_files_fit_a_reading() -> None:
    long = {name(path): lines for path in files() if (lines := path.read_text("utf-8").count("\n")) > LONGEST_FILE}
    assert not long, f"over {LONGEST_FILE} lines: split by subject"


def test_functions_fit_a_screen() -> None:
    sizes = {
        f"{name(path)} {node.name}": node.end_lineno - node.lineno + 1
        for path, node in nodes((ast.FunctionDef, ast.AsyncFunctionDef))
        if isinstance(node, Function) and node.end_lineno is not None
    }
    long = {where: size for where, size in sizes.items() if size > LONGEST_FUNCTION}
    assert not long, f"over {LONGEST_FUNCTION} lines"


def test_modules_have_nouns() -> None:
    found = [name(path) for path in files() if NAMELESS & set(path.relative_to(HOME).with_suffix("").parts)]
    assert not found


@cache
def arrows() -> dict[str, set[str]]:
    """Module -> modules of the house that it imports, wherever in it: also inside functions, and for the type checker alone."""
    known = modules()
    found: dict[str, set[str]] = {one: set() for one in known}
    for path, node in nodes((ast.Import, ast.ImportFrom)):
        out = found[module(path)]
        if isinstance(node, ast.Import):
            out.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{name(path)}: imports are absolute"
            wholes = {f"{node.module}.{alias.name}" for alias in node.names}
            out |= wholes if wholes <= known else wholes | {node.module}
    return {one: out & known - {one} for one, out in found.items()}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The sets of nodes from each of which an arrow leads, over others, to every other."""
    found = nx.strongly_connected_components(nx.DiGraph(graph))
    return sorted(sorted(circle) for circle in found if len(circle) > 1)


def test_a_circle_would_be_seen() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    assert "sim.program" in arrows()["sim.files.text"]
    assert "sim.planning.sweeps.cluster" in arrows()["sim.planning.sweeps.pool"], "an import inside a function"
    assert "sim.result.prediction" in arrows()["steptwin"], "an import for the type checker"


def test_no_files_import_each_other_in_a_circle() -> None:
    where = {module(path): name(path) for path in files()}
    found = [" <-> ".join(where[one] for one in circle) for circle in circles(arrows())]
    assert not found, "what both need belongs into a file below them: " + "; ".join(found)


@cache
def loaded() -> nx.DiGraph[str]:
    """Module -> what importing it imports, our own and others': all but what stands in functions, or is for the type checker alone."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(modules())
    for path in files():
        graph.add_edges_from((module(path), one) for node in at_once(tree(path)) for one in imported(node))
    return graph


def at_once(node: ast.AST) -> Iterator[ast.AST]:
    """The imports that run with a module."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        elif not isinstance(child, Function) and not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from at_once(child)


def imported(node: ast.AST) -> set[str]:
    """The modules that an import loads, the packages that they are in among them."""
    names = {alias.name for alias in node.names} if isinstance(node, ast.Import) else set[str]()
    if isinstance(node, ast.ImportFrom) and node.module:
        names = {node.module} | {whole for alias in node.names if (whole := f"{node.module}.{alias.name}") in modules()}
    return {".".join(parts[: at + 1]) for name in names for parts in [name.split(".")] for at in range(len(parts))}


def test_imports_inside_functions_save_something() -> None:
    """One whose module is loaded with its file all the same belongs to the top. (torch comes after the words that say it is missing.)"""
    found = set()
    for path in files():
        known = nx.descendants(loaded(), module(path)) - {"torch"}
        for function in filter(lambda node: isinstance(node, Function), ast.walk(tree(path))):
            inside = (node for node in ast.walk(function) if isinstance(node, (ast.Import, ast.ImportFrom)))
            found |= {f"{name(path)}:{node.lineno}" for node in inside if imported(node) <= known}
    assert sorted(found) == []


def test_options_are_given() -> None:
    """One that nobody gives, not even a test, is none. Only names that stand for one function and are only called tell."""
    trees = [*map(tree, files()), *(tree(path) for path in sorted((HOME / "tests").rglob("*.py")))]
    defined = [node for path, node in nodes(ast.FunctionDef) if isinstance(node, ast.FunctionDef)]
    often = Counter(node.name for node in defined)
    calls: dict[str, list[ast.Call]] = {}
    named: Counter[str] = Counter()
    for node in (node for one in trees for node in ast.walk(one)):
        if isinstance(node, (ast.Name, ast.Attribute)):
            named[_own_name(node)] += 1
        elif isinstance(node, ast.Call):
            calls.setdefault(_called(node), []).append(node)
    silent = set()
    for node in defined:
        found, places = calls.get(node.name, []), [argument.arg for argument in node.args.args]
        plain = all(word.arg for call in found for word in call.keywords) and not any(
            isinstance(one, ast.Starred) for call in found for one in call.args
        )
        if not found or not plain or often[node.name] > 1 or named[node.name] > len(found) or places[:1] == ["self"]:
            continue
        given = {word.arg for call in found for word in call.keywords} | {name for call in found for name in places[: len(call.args)]}
        optional = places[len(places) - len(node.args.defaults) :] + [
            argument.arg for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if default is not None
        ]
        silent |= {f"{node.name}({name})" for name in optional if name not in given}
    assert silent == set()


@pytest.mark.parametrize(("room", "never"), [("topologies", ("sim", "executor", "reports")), ("sim", ("executor", "reports"))])
def test_arrows_point_down(room: str, never: tuple[str, ...]) -> None:
    up = {
        one: out for one, all_ in arrows().items() if one.split(".")[0] == room and (out := {x for x in all_ if x.split(".")[0] in never})
    }
    assert not up


def test_nothing_unsafe_is_imported() -> None:
    found = []
    for path, node in nodes((ast.Import, ast.ImportFrom)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", None) or ""]
        found += [f"{name(path)}: {one}" for one in names if one in UNSAFE_MODULES or one.split(".")[0] in UNSAFE_MODULES]
        found += [f"{name(path)}: {one}" for one in names if any(one == bad or one.startswith(f"{bad}.") for bad in LISTENERS)]
    assert not found, "no pickle is read, and nothing serves"


def test_no_text_is_run_as_code() -> None:
    found = {name(path) for path, node in nodes(ast.Call) if isinstance(node.func, ast.Name) and _called(node) in RUN}  # type: ignore[attr-defined]
    assert found == OWN_CELLS


def test_torch_loads_weights_only() -> None:
    """`torch.load` reads pickles unless it is told not to."""
    for path, node in nodes(ast.Call):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
            assert any(word.arg == "weights_only" and ast.unparse(word.value) == "True" for word in node.keywords), name(path)


def test_no_shell_is_given_a_line() -> None:
    for path, node in nodes(ast.Call):
        if isinstance(node, ast.Call):
            assert not any(word.arg == "shell" and ast.unparse(word.value) != "False" for word in node.keywords), name(path)
            assert ast.unparse(node.func) not in ("os.system", "os.popen"), name(path)


def test_nothing_listens_off_loopback() -> None:
    texts = [
        f"{name(path)}:{node.lineno}" for path, node in nodes(ast.Constant) if isinstance(node, ast.Constant) and node.value in ANYWHERE
    ]
    calls = [f"{name(path)}: {_called(node)}" for path, node in nodes(ast.Call) if _called(node) in LISTEN]
    stores = {name(path) for path, node in nodes(ast.Call) if _called(node) == "TCPStore"}
    # aten.py knows "::" as the separator in operator names.
    assert [one for one in texts if not one.startswith("executor/recording/aten.py")] == []
    assert calls == []
    assert stores == {"executor/ranks/world.py"}, (
        "the process group's store is the only server: its address comes from the launcher, 127.0.0.1 unless told"
    )


def test_names_in_texts_are_names() -> None:
    """`sim.lower.noise.loads`, in a docstring or a comment, is a module, or stands in one."""
    texts = {module(path): path.read_text("utf-8") for path in files()}
    lost = set()
    for where, text in texts.items():
        for name in re.findall(rf"`((?:{'|'.join(ROOMS)})(?:\.\w+)+)", text):
            home = next((name[:at] for at in range(len(name), 0, -1) if name[:at] in texts and name[at : at + 1] in ("", ".")), "")
            inside = name.removeprefix(home).strip(".").partition(".")[0]
            if not home or not re.search(rf"\b{inside}\b" if inside else "", texts[home]):
                lost.add(f"{where}: {name}")
    assert lost == set()


def _told(body: list[ast.stmt], inside: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """Public functions, classes and methods; a method of one statement, and torch's `forward`, say what they do themselves."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield f"{inside}{node.name}", node
            yield from _told(node.body, f"{node.name}.")
        elif isinstance(node, Function) and not node.name.startswith("_") and node.name != "forward" and (not inside or len(node.body) > 1):
            yield f"{inside}{node.name}", node


def test_modules_say_what_they_are() -> None:
    assert [name(path) for path in files() if tree(path).body and not ast.get_docstring(tree(path))] == []


def test_what_is_public_says_what_it_does() -> None:
    silent = {f"{name(path)}: {what}" for path in files() for what, node in _told(tree(path).body) if not ast.get_docstring(node)}  # type: ignore[arg-type]
    assert silent <= SILENT, "a docstring with units, shapes, errors and the source of each formula"
