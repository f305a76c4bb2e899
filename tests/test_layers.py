"""The architecture, as imports: mountctl -> fsstore -> engine, one way, through the engine's front door."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import engine

PROJECT = Path(__file__).resolve().parent.parent
LAYERS = ("engine", "fsstore", "mountctl")
FORBIDDEN = {
    "engine": {"trio", "pyfuse3", "click", "rich", "fsstore", "mountctl", "pyspark", "pyarrow", "argparse"},
    "fsstore": {"click", "rich", "mountctl", "argparse"},
    "mountctl": {"pyfuse3", "trio"},
}
"""Packages that a layer may not import: those of the layers above it."""


def sources(layer: str) -> list[Path]:
    return sorted((PROJECT / layer).rglob("*.py"))


EVERY_SOURCE = [pytest.param(path, id=str(path.relative_to(PROJECT))) for layer in LAYERS for path in sources(layer)]
OUTSIDE_ENGINE = [path for path in EVERY_SOURCE if not str(path.id).startswith("engine/")] + [
    pytest.param(path, id=str(path.relative_to(PROJECT))) for path in sources("examples")
]


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All nodes of a file's syntax tree, which nobody changes: most tests below look at most files."""
    return list(ast.walk(ast.parse(path.read_text())))


def imported_modules(path: Path) -> Iterator[str]:
    """Every module that a file imports, at its top or inside a function."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


@pytest.mark.parametrize("path", EVERY_SOURCE)
def test_a_layer_imports_nothing_of_the_layers_above_it(path: Path) -> None:
    layer = path.relative_to(PROJECT).parts[0]
    packages = {module.partition(".")[0] for module in imported_modules(path)}
    assert not packages & FORBIDDEN[layer]


@pytest.mark.parametrize("path", OUTSIDE_ENGINE)
def test_outsiders_use_the_engines_front_door_alone(path: Path) -> None:
    assert [module for module in imported_modules(path) if module.startswith("engine.")] == []


@pytest.mark.parametrize("path", [path for path in EVERY_SOURCE if not str(path.id).startswith("mountctl/")])
def test_only_the_command_line_prints_or_exits(path: Path) -> None:
    called = {ast.unparse(node.func) for node in nodes_of(path) if isinstance(node, ast.Call)}
    assert not called & {"print", "sys.exit", "exit", "quit", "os._exit", "click.echo"}


def test_the_front_door_names_what_is_there_each_once_in_order() -> None:
    assert len(set(engine.__all__)) == len(engine.__all__)
    missing = [name for name in engine.__all__ if not hasattr(engine, name)]
    assert missing == []


@pytest.mark.parametrize("path", [path for path in EVERY_SOURCE if str(path.id).startswith("engine/")])
def test_the_engine_reads_no_environment(path: Path) -> None:
    used = {ast.unparse(node) for node in nodes_of(path) if isinstance(node, ast.Attribute)}
    assert not used & {"os.environ", "os.getenv", "os.environb"}


FILE_CALLS = {
    *("open", "os.open", "io.open", "os.truncate", "os.mkdir", "os.makedirs", "os.rename", "os.replace", "os.link"),
    *("os.symlink", "os.unlink", "os.remove", "os.rmdir", "os.chown", "os.chmod", "os.utime", "shutil.rmtree"),
}
PATH_CALLS = {
    *("read_bytes", "write_bytes", "read_text", "write_text", "mkdir", "touch", "unlink", "rmdir", "rename"),
    *("symlink_to", "hardlink_to", "chmod"),
}
"""Calls that open, make or remove a file by its name, wherever links lead."""

OPENS_BY_NAME = {
    "engine/files/paths.py": "the one that does, and looks where links lead",
    "engine/files/scratch.py": "in a directory that it has just made, below none of a store's",
}


def calls_by_name(path: Path) -> Iterator[str]:
    """Calls of a source file that open, make or remove a file by its name."""
    for node in nodes_of(path):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            method = called.rpartition(".")[2] if isinstance(node.func, ast.Attribute) else ""
            with_a_mode = method == "open" and any(isinstance(one, ast.Constant) for one in node.args)
            wraps = any(keyword.arg == "closefd" for keyword in node.keywords)  # a descriptor that is open
            is_own = called.startswith(("self.", "os.")) and called not in FILE_CALLS
            if (called in FILE_CALLS and not wraps) or with_a_mode or (method in PATH_CALLS and not is_own):
                yield f"line {node.lineno}: {called}"


@pytest.mark.parametrize("path", [path for path in EVERY_SOURCE if str(path.id).startswith("engine/")])
def test_one_module_opens_makes_and_removes_what_is_below_a_store(path: Path) -> None:
    excused = str(path.relative_to(PROJECT)) in OPENS_BY_NAME
    assert bool(list(calls_by_name(path))) == excused, list(calls_by_name(path))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for layer in LAYERS for path in sources(layer)}


def imported(path: Path, *, for_types: bool) -> set[str]:
    """Modules of ours that a file imports, with or without those that only its annotations name."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if not for_types and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(submodules & set(MODULES) or {node.module or ""})
    return found & set(MODULES)


MAY_IMPORT = {
    "engine": {
        "errors": set(),
        "deadline": set(),
        "events": set(),
        "figures": set(),
        "record": {"errors", "deadline"},
        "results": {"figures", "record"},
        "files": {"errors", "record"},
        "settings": {"errors", "deadline", "figures", "record", "results", "files"},
        "log": {"errors", "record", "results", "files", "settings"},
        "derived": {"errors", "deadline", "record", "results", "events", "files", "settings", "log"},
        "read": {"errors", "deadline", "record", "results", "files", "log", "derived"},
        "write": {"errors", "record", "results", "events", "files", "settings", "log", "derived"},
        "replication": {
            *("errors", "record", "results", "events", "files", "settings", "log", "derived", "write", "open", "store")
        },
        "open": {"errors", "deadline", "record", "results", "events", "files", "settings", "log", "derived"},
    },
    "fsstore": {
        "options": set(),
        "mount_table": set(),
        "handover": set(),
        "interface": {"options"},
        "accounts": {"interface"},
        "callers": {"accounts"},
        "topic_facts": set(),
        "tree": {"accounts", "callers", "topic_facts", "handover", "interface", "options"},
        "parquet": {"options", "interface", "tree"},
        "arrow": {"parquet"},
        "jobs": {"interface", "parquet"},
        "fleet": {"parquet", "jobs"},
        "spark": {"parquet", "jobs", "fleet"},
        "query": {"tree"},
        "serve": {"mount_table", "topic_facts", "interface", "tree", "parquet", "fleet", "query"},
        "open_handles": {"handover", "interface", "tree"},
        "core": {"accounts", "callers", "handover", "interface", "tree", "parquet", "open_handles"},
        "fuse": {"options", "mount_table", "accounts", "handover", "interface", "tree", "core"},
    },
}
"""Packages and modules of a layer, from the bottom up, and what each may import of those below. What is not named may
import all: a layer's own front door."""


PACKAGES = [(layer, package) for layer, packages in MAY_IMPORT.items() for package in packages]


@pytest.mark.parametrize(("layer", "package"), PACKAGES)
def test_a_package_imports_what_is_below_it(layer: str, package: str) -> None:
    own = {name for name in MODULES if name == f"{layer}.{package}" or name.startswith(f"{layer}.{package}.")}
    others = {module for name in own for module in imported(MODULES[name], for_types=True)} - own
    inside = {module.split(".")[1] for module in others if module.startswith(f"{layer}.")}
    assert own, "it is not there"
    assert inside <= MAY_IMPORT[layer][package]


AT_RUN_TIME = {name: imported(path, for_types=False) - {name} for name, path in MODULES.items()}
WITH_TYPES = {name: imported(path, for_types=True) - {name} for name, path in MODULES.items()}

LONGEST_AT_RUN_TIME, LONGEST_WITH_TYPES = 10, 14
"""Modules of engine, each imported by the one before: a reader of the first may have to read all. Lengths only fall."""


def test_no_module_imports_itself_by_way_of_others() -> None:
    TopologicalSorter(WITH_TYPES).prepare()  # CycleError names one


@pytest.mark.parametrize(("imports", "longest"), [(AT_RUN_TIME, LONGEST_AT_RUN_TIME), (WITH_TYPES, LONGEST_WITH_TYPES)])
def test_no_chain_of_imports_through_the_engine_is_longer_than_it_was(
    imports: dict[str, set[str]], longest: int
) -> None:
    chains: dict[str, list[str]] = {}
    for name in TopologicalSorter(imports).static_order():
        below = [chains[module] for module in imports[name]]
        chains[name] = [name, *max(below, key=len, default=[])]
    found = max((chain for name, chain in chains.items() if name.startswith("engine")), key=len)
    assert len(found) == longest, " > ".join(found)


MOST_PARAMETERS = 8
"""Limit for a class with behaviour. Records, which are frozen, may have more fields."""


def parameters(node: ast.ClassDef) -> int:
    """Number of parameters of a class that is no record."""
    written = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    decorators = [ast.unparse(one) for one in node.decorator_list]
    if written:
        return len(written[0].args.args) - 1 + len(written[0].args.kwonlyargs)
    if not any(one.startswith("dataclass") and "frozen=True" not in one for one in decorators):
        return 0
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
    return sum(one.value is None or "init=False" not in ast.unparse(one.value) for one in fields)


@pytest.mark.parametrize("path", EVERY_SOURCE)
def test_no_class_with_behaviour_takes_many_parameters(path: Path) -> None:
    classes = [node for node in nodes_of(path) if isinstance(node, ast.ClassDef)]
    assert [node.name for node in classes if parameters(node) > MOST_PARAMETERS] == []


@pytest.mark.parametrize("loaded", ["mountctl.serving", "mountctl.verbs.mount", "fsstore.core"])
def test_a_mount_loads_nothing_of_the_server(loaded: str) -> None:
    program = (
        f"import sys, {loaded}; print(*(one for one in sys.modules if one.startswith(('httptools', 'fsstore.serve'))))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("name", ["spark.reading", "spark.writing", "jobs.export", "jobs.records"])
def test_sparks_executors_load_nothing_of_the_engine(name: str) -> None:
    """They read and write mounted files; each executor loads the module anew."""
    program = f"import sys, fsstore.{name}; print(*(one for one in sys.modules if one.startswith('engine')))"
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
