"""Nothing that is read can run: the package's own source, looked through for what would let it."""

import ast
from pathlib import Path

import pytest

import coterie
from coterie.errors import BadInput
from coterie.models import build
from coterie.studies.study import check

SOURCE = Path(coterie.__file__).parent
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "xml", "code"}
FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "__import__", "torch.load", "torch.jit.load", "torch.save", "np.load", "numpy.load",
    "pd.read_pickle", "pandas.read_pickle", "os.system", "os.popen", "runpy.run_path", "runpy.run_module",
}  # fmt: skip
# Modules imported by name: a fixed word each, never one that was read.
IMPORTED = {
    "PIL.Image", "flwr.supercore.superexec.run_superexec", "flwr.supernode.fleet_http_connection",
    "flwr.supernode.start_client_internal", "torch.utils.tensorboard",
}  # fmt: skip
EXCEPT = {
    "__init__.py": "imports what it was told",  # the package's own public names, from a table beside them
    "models/code.py": "imports what it was told",  # `--model module:Class`, said on the command line or in Python
}


def name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def findings(text: str) -> list[str]:
    """What in a source could run what was read, line by line."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [f"{node.lineno}: imports {m}" for m in modules if m.split(".")[0] in FORBIDDEN_MODULES]
        if not isinstance(node, ast.Call):
            continue
        called, keywords = name_of(node.func), {k.arg: k.value for k in node.keywords}
        if called in FORBIDDEN_CALLS:
            found.append(f"{node.lineno}: calls {called}")
        if called.endswith("import_module") and not (
            isinstance(node.args[0], ast.Constant) and node.args[0].value in IMPORTED
        ):
            found.append(f"{node.lineno}: imports what it was told")
        if "shell" in keywords:
            found.append(f"{node.lineno}: {called} with a shell")
        allowed = keywords.get("allow_pickle")
        if allowed is not None and not (isinstance(allowed, ast.Constant) and allowed.value is False):
            found.append(f"{node.lineno}: {called} allows pickle")
        if called.endswith("read_array") and allowed is None:
            found.append(f"{node.lineno}: {called} does not forbid pickle")
    return found


def test_the_package_runs_nothing_that_it_reads() -> None:
    sources = {path.relative_to(SOURCE).as_posix(): path.read_text("utf-8") for path in SOURCE.rglob("*.py")}
    assert len(sources) > 100 and sources.keys() >= EXCEPT.keys()
    for name, text in sources.items():
        assert [f for f in findings(text) if f.partition(": ")[2] != EXCEPT.get(name)] == [], name


def test_a_study_names_no_code() -> None:
    with pytest.raises(BadInput, match="a study runs no code"):
        check({"model": {"name": "os:system"}, "methods": {"fedavg": {}}})
    with pytest.raises(BadInput, match="unknown model"):
        build({"name": "os:system"}, (4,), 2)


def test_the_search_would_find_it() -> None:
    for harm in (
        "import pickle", "from yaml import load", "eval(x)", "torch.load(p)", "np.load(p)",
        "subprocess.run(x, shell=True)",
        "import_module(name)", "np.lib.format.read_array(f)", "np.lib.format.read_array(f, allow_pickle=True)",
        "os.system(x)",
    ):  # fmt: skip
        assert findings(harm), harm
