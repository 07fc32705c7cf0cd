"""The project's own promises: who imports whom, what importing costs, and that the contracts cover every package and driver."""

from __future__ import annotations

import ast
import configparser
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ["trigger_core", "offsets", "trigger_outbox", "trigger_broker", "trigger_sink", "trigger_source", "pyspark_trigger"]
SLOW_S_MAX = 120


def sections() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def run(*code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *code], cwd=ROOT, capture_output=True, text=True, timeout=SLOW_S_MAX, check=False)


def test_the_import_contracts_are_kept() -> None:
    done = run("-c", "from importlinter.cli import lint_imports_command; lint_imports_command()", "--config", "setup.cfg")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_package_is_under_contract_and_in_the_wheel() -> None:
    on_disk = sorted(path.parent.name for path in ROOT.glob("*/py.typed"))
    assert on_disk == sorted(PACKAGES)
    assert sections()["importlinter"]["root_packages"].split() == PACKAGES
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(f'    "{package}",\n' in declared for package in PACKAGES)


def test_every_driver_is_under_contract() -> None:
    named = sections()["importlinter:contract:drivers"]["layers"]
    for driver in (ROOT / "trigger_broker").glob("driver_*.py"):
        assert f"({driver.stem})" in named, f"{driver.name} is missing from setup.cfg"


@pytest.mark.parametrize("library", ["pyspark", "pandas", "deltalake", "obstore", "nats", "confluent_kafka", "redis"])
def test_importing_the_public_package_imports_no_library(library: str) -> None:
    """Spark imports it in every session, used or not: it must be cheap and must not fail."""
    done = run("-c", f"import sys, pyspark_trigger; sys.exit({library!r} in sys.modules)")
    assert done.returncode == 0, f"{library} was imported: {done.stderr}"


def modules() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("module", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_it_owns(module: Path) -> None:
    assert ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))), f"{module.name} has no docstring"
    assert not {"util", "utils", "helper", "helpers", "manager", "misc", "common"} & set(module.stem.split("_"))


def test_no_test_sleeps() -> None:
    """A sleep is a guess; inside a loop that waits for a condition it is only a pause between two looks."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        polling = {id(node) for loop in ast.walk(tree) if isinstance(loop, ast.While) for node in ast.walk(loop)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and id(node) not in polling:
                assert (node.value.id, node.attr) != ("time", "sleep"), f"{path.relative_to(ROOT)}:{node.lineno} sleeps"

