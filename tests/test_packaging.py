"""What `pip install` puts on a machine: the wheel is built once, and read."""

import shlex
import subprocess
import sys
import tomllib
from email.parser import Parser
from zipfile import ZipFile

import pytest

from quadrille.algorithms.optional_packages import DISTRIBUTION, EXTRAS
from tests.support.quadrille import ROOT

LARGEST_WHEEL = 3_000_000
WITHOUT = "import sys; sys.modules[{0!r}] = None\nfrom quadrille.cli.main import main\nsys.exit(main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that `make wheel` builds, without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    words = ["hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run([sys.executable, "-m", *words], cwd=ROOT, check=True, capture_output=True)
    with ZipFile(next(folder.glob("*.whl"))) as file:
        yield file


def metadata(wheel):
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def tracked(*patterns):
    listed = subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=False)
    return set(listed.stdout.split())


def test_a_wheel_holds_one_package_and_nothing_else(wheel):
    folders = {name.partition("/")[0] for name in wheel.namelist()}
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert folders == {"quadrille", f"quadrille_hpc-{version}.dist-info"}


def test_a_wheel_holds_every_module_and_data_file_and_no_results(wheel):
    files = tracked("quadrille", "algorithms", "topologies", "simulator", "runtime", "experiments", "studies")
    if not files:
        pytest.skip("the folder is no git checkout")
    kept = {name for name in files if "/results/" not in name and not (ROOT / name).is_symlink()}
    expected = {name if name.startswith("quadrille/") else f"quadrille/{name}" for name in kept}
    assert expected <= set(wheel.namelist())
    assert not [name for name in wheel.namelist() if "/results/" in name or "/tests/" in name]


def test_a_wheel_is_small(wheel):
    assert sum(entry.compress_size for entry in wheel.infolist()) <= LARGEST_WHEEL


def test_the_distribution_offers_its_command_and_its_optional_parts(wheel):
    about = metadata(wheel)
    assert about["Name"] == DISTRIBUTION
    assert set(about.get_all("Provides-Extra")) == {*EXTRAS.values(), "openmpi", "cuda12", "cuda13"}
    for package, extra in EXTRAS.items():
        name = package.replace("_", "-")
        assert [need for need in about.get_all("Requires-Dist") if need.startswith(name) and f"'{extra}'" in need]
    entry = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "quadrille = quadrille.cli.main:program" in wheel.read(entry).decode()


def test_an_installed_wheel_works_without_the_clone(wheel, tmp_path):
    wheel.extractall(tmp_path)
    words = ["simulate", "--matmul", "64,64,64", "--grid", "z=2", "--machine", "perlmutter", "--json", "-"]
    program = [sys.executable, "-P", "-m", "quadrille", *words]
    done = subprocess.run(
        program, env={"PYTHONPATH": str(tmp_path)}, cwd="/", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert '"quadrille":' in done.stdout


@pytest.mark.parametrize(
    ("package", "words", "line"),
    [
        (
            "matplotlib",
            ["topology", "show", "star:hosts=2", "--plot", "net.png"],
            "--plot needs matplotlib",
        ),
        (
            "pyroute2",
            ["lab", "status"],
            "an emulated network needs pyroute2",
        ),
    ],
)
def test_a_missing_extra_is_one_line_with_the_command_of_the_clone_or_of_the_package_index(
    wheel, package, words, line, tmp_path
):
    wheel.extractall(tmp_path)
    commands = {
        ROOT: f"make -C {shlex.quote(str(ROOT))} setup, which installs {package} into {ROOT}/.venv",
        tmp_path: f"pip install '{DISTRIBUTION}[{EXTRAS[package]}]'",
    }
    for folder, command in commands.items():
        program = [sys.executable, "-P", "-c", WITHOUT.format(package), *words]
        variables = {"PYTHONPATH": str(folder)}
        done = subprocess.run(program, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.strip()) == (2, f"quadrille: {line}: {command}")
