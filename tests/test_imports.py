"""The shape of the package: imports go one way, time and randomness come from one place, nothing is pickled."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "floodplain"

ORDER = (
    *("cli", "dashboard", "bench", "testing", "spark", "workers", "sources", "query", "load", "pipeline", "runtime"),
    *("elasticity", "plan", "sinks", "operators", "eventtime", "state", "expressions", "cost", "store", "versions", "tiers"),
    *("metrics", "equality", "keys", "lossless", "structs", "xxh64", "settings", "prices", "tier_use"),
    *("errors", "scratch", "host", "clock"),
)
"""Rooms from top to bottom. A module imports from its own folder and from what is further down."""
HERE = ""
"""A room's own modules among its sub-rooms."""
SUB_ROOMS = {
    "bench": (HERE, "peers", "contenders", "harness", "workloads"),
    "spark": ("checkpoint_import", "transform_with_state", "downstream", "state_reader", HERE),
    "pipeline": (HERE, "explain"),
    "runtime": ("live", HERE, "compatibility", "checkpoint"),
    "operators": ("windows", "joins", "ranking", "aggregates", "changelog", "kernel"),
    "store": (HERE, "compaction", "write", "read", "run", "rows"),
    "versions": ("retention", "log", "records"),
    "tiers": (HERE, "cache", "files"),
}
"""Of the rooms that have sub-rooms, the order within."""
MOST_MODULES = 22
"""In one folder."""

TOPS = ("__init__", "__main__")
AMBIENT_MODULES = {"random", "secrets", "uuid"}
AMBIENT_CALLS = {
    *("time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.sleep", "os.urandom"),
    *("datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
}
STOCK_SPARK = ("bench.contenders.stock_spark", "bench.contenders.stock_nexmark")
"""Contenders that are Spark itself: no Floodplain code may stand between them and pyspark."""
PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}


def defects(module: str, source: str) -> list[str]:
    """What is wrong with a module, given its dotted name below ``floodplain``."""
    tree = ast.parse(source)
    return [
        *_import_defects(module, tree),
        *_init_defects(module, tree),
        *_ambient_defects(module, tree),
        *_pool_defects(tree),
    ]


def _pool_defects(tree: ast.Module) -> Iterator[str]:
    """A generator that is let go of half way ends its pool where it is collected: in any thread, under any lock."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.With) or not any("ThreadPoolExecutor" in ast.unparse(item) for item in node.items):
            continue
        if any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in ast.walk(node)):
            yield f"line {node.lineno}: a pool of threads is held across a yield"


def _import_defects(module: str, tree: ast.Module) -> Iterator[str]:
    top_level = set(map(id, _top_level(tree)))
    for node in ast.walk(tree):
        for name in _imported(node):
            root = name.partition(".")[0]
            if root == "floodplain":
                if id(node) not in top_level:
                    yield f"line {node.lineno}: {name} is imported inside a function"
                if not _may_import(module, name):
                    yield f"line {node.lineno}: {module} imports {name}, which is not below it"
            elif root in ("pyspark", "py4j") and _folder(module) != "spark" and module not in STOCK_SPARK:
                yield f"line {node.lineno}: only spark/ imports {root}"
            elif root in PICKLES:
                yield f"line {node.lineno}: {root} is a pickle"
            elif root in AMBIENT_MODULES and module != "clock":
                yield f"line {node.lineno}: {root} is ambient randomness: pass a Randomness"


def _top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run when the module is imported; those that only a type checker sees count too."""
    for node in tree.body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from (inner for inner in ast.walk(node) if isinstance(inner, ast.stmt))


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        if node.level:
            return ["floodplain.<relative>"]
        if _is_room(node.module or ""):
            return [f"{node.module}.{alias.name}" for alias in node.names]
        return [node.module or ""]
    return []


def _is_room(name: str) -> bool:
    """Whether this is a folder of Floodplain: names imported from it are modules."""
    root, *parts = name.split(".")
    return root == "floodplain" and (len(parts) < 2 or (len(parts) == 2 and parts[1] in SUB_ROOMS.get(parts[0], ())))


def _folder(module: str) -> str:
    return module.partition(".")[0]


def _place(module: str) -> tuple[int, int]:
    """How far down a module is: its room, then its sub-room. Raises if it has no place."""
    room, *rest = module.split(".")
    inner = SUB_ROOMS.get(room, (HERE,))
    sub_room = rest[0] if len(rest) > 1 else HERE
    return ORDER.index(room), inner.index(sub_room)


def _may_import(module: str, name: str) -> bool:
    if module in TOPS:
        return True
    try:
        return _place(name.removeprefix("floodplain.")) >= _place(module)
    except ValueError:
        return False


def _init_defects(module: str, tree: ast.Module) -> Iterator[str]:
    """Folders have nothing in their ``__init__``; the package's own has the public names and nothing else."""
    if not module.endswith("__init__"):
        return
    for node in tree.body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        naming = isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute | ast.List | ast.Name | ast.Dict)
        )
        lazy = isinstance(node, ast.FunctionDef) and node.name == "__getattr__"
        typed = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and _only_imports(node)
        if not docstring and not ((naming or lazy or typed) and module == "__init__"):
            yield f"line {node.lineno}: {module} holds logic"


def _only_imports(node: ast.If) -> bool:
    return not node.orelse and all(isinstance(each, ast.ImportFrom) for each in node.body)


def _ambient_defects(module: str, tree: ast.Module) -> Iterator[str]:
    if module == "clock":
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
            if any(dotted == call or dotted.endswith(f".{call}") for call in AMBIENT_CALLS):
                yield f"line {node.lineno}: {dotted} is an ambient clock or randomness: pass a Clock or a Randomness"
        elif isinstance(node, ast.ImportFrom) and node.module in ("time", "os"):
            for alias in node.names:
                if f"{node.module}.{alias.name}" in AMBIENT_CALLS:
                    yield f"line {node.lineno}: {node.module}.{alias.name} is an ambient clock: pass a Clock"
        elif isinstance(node, ast.Call) and _is_unseeded(node):
            yield f"line {node.lineno}: {ast.unparse(node)} is ambient randomness: seed it"


def _is_unseeded(node: ast.Call) -> bool:
    folder, _, name = ast.unparse(node.func).rpartition(".")
    if folder not in ("np.random", "numpy.random"):
        return False
    return name not in ("default_rng", "Generator", "PCG64") or not (node.args or node.keywords)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=module_of)
def test_a_module_keeps_the_rules(path):
    assert defects(module_of(path), path.read_text()) == []


def test_every_module_has_its_place():
    modules = [module_of(path) for path in MODULES]
    for module in modules:
        if module not in TOPS and not module.endswith("__init__"):
            _place(module)
    assert all(len(module.split(".")) <= 3 for module in modules)
    assert {"cli", "state", "store", "versions", "tiers", "keys", "errors", "clock"} <= {_folder(module) for module in modules}


def test_a_folder_holds_few_modules():
    folders = Counter(path.parent for path in MODULES if path.stem != "__init__")
    assert {folder.name: count for folder, count in folders.items() if count > MOST_MODULES} == {}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("tiers.cache", "from floodplain.store.run import Run"),
        ("store.run", "import floodplain.cli.main"),
        ("keys", "from floodplain.metrics import Counters"),
        ("store.run", "from floodplain import Store"),
        ("store.run.reader", "from floodplain.store.read.scan import scan"),
        ("store.rows.layout", "import floodplain.store.store"),
        ("operators.kernel.task", "from floodplain.eventtime.windows.session import SessionWindows"),
        ("spark.driver", "from floodplain.spark.transform_with_state.api import transform_with_state"),
        ("store.store", "from floodplain.tiers.unknown.room import name"),
        ("store.run", "from floodplain import cli"),
        ("store.run", "from . import layout"),
        ("store.run", "def f():\n    from floodplain.errors import Corrupt"),
        ("store.run", "class A:\n    def f(self):\n        import floodplain.errors"),
        ("store.run", "if x:\n    from floodplain.cli import main"),
        ("store.run", "import pyspark.sql"),
        ("bench.counter", "import pyspark.sql"),
        ("store.run", "def f():\n    from pyspark import sql"),
        ("store.run", "import pickle"),
        ("spark.driver", "from cloudpickle import dumps"),
        ("store.run", "import random"),
        ("store.run", "from uuid import uuid4"),
        ("store.run", "import time\ntime.time()"),
        ("store.run", "from time import time_ns"),
        ("store.run", "import datetime\ndatetime.datetime.now()"),
        ("store.run", "np.random.rand(3)"),
        ("store.run", "np.random.default_rng()"),
        ("store.run", "def f():\n    with ThreadPoolExecutor(2) as pool:\n        yield from pool.map(f, g)"),
        ("store.__init__", "from floodplain.store.run import Run"),
        ("store.__init__", "x = 1"),
        ("__init__", "def f(): ..."),
        ("__init__", "import floodplain.store\nfor x in []: pass"),
        ("__init__", "if TYPE_CHECKING:\n    x = 1"),
        ("__init__", "if DEBUG:\n    from floodplain.store.store import Store"),
    ],
)
def test_each_rule_can_fail(module, source):
    assert defects(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("store.run", "from floodplain.store.rows.layout import physical\nfrom floodplain.tiers import paths"),
        ("store.read.scan", "from floodplain.store.run import reader\nfrom floodplain.store.rows.layout import one_array"),
        ("spark.transform_with_state.api", "import pyspark\nfrom floodplain.spark.runtime import stream"),
        ("spark.driver", "import pyspark"),
        ("bench.contenders.stock_spark", "import pyspark"),
        ("clock", "import random\nimport time\ntime.time()"),
        ("bench.load", "np.random.default_rng(7).choice(3)\ntime.perf_counter()"),
        ("store.__init__", '"""What it is."""'),
        ("__init__", "from floodplain.store.store import Store\n__all__ = ['Store']\nopen = Store.open"),
        ("store.run", "if TYPE_CHECKING:\n    from floodplain.errors import Corrupt"),
        ("__init__", "if TYPE_CHECKING:\n    from floodplain.spark.runtime import stream"),
    ],
)
def test_what_is_allowed(module, source):
    assert defects(module, source) == []
