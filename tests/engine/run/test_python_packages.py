import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from cm4vllm.common.errors import InstallError, RecipeError, UsageError
from cm4vllm.engine.run import python_packages as pythons
from cm4vllm.engine.run.python_packages import inspect_python, missing_of, require_file, require_package

ROOT = Path(__file__).resolve().parents[3]
NETLESS = ["--index-url", "http://127.0.0.1:9/simple"]


def test_running_python_is_the_default():
    python = inspect_python()
    assert python.path == Path(sys.executable)
    assert python.version == ".".join(map(str, sys.version_info[:3]))


def test_a_given_python_is_asked(tmp_path):
    link = tmp_path / "mine"
    link.symlink_to(sys.executable)
    assert inspect_python(str(link)).version == inspect_python().version


@pytest.mark.parametrize("path", ["/nonexistent/python", "/bin/true"])
def test_what_is_no_python_is_told(path):
    with pytest.raises(UsageError, match="is not a Python"):
        inspect_python(path)


def test_a_package_that_is_there_needs_no_pip(monkeypatch):
    monkeypatch.setattr(pythons, "_install", lambda *_args: pytest.fail("pip was called"))
    version = pythons.installed_version("PyYAML")
    assert require_package("PyYAML", "", NETLESS) == version
    assert require_package("PyYAML", f"=={version}", NETLESS) == version
    assert require_package("PyYAML", ">=5,<=99", NETLESS) == version


@pytest.mark.parametrize("condition", ["==0.0.1", ">=99", "<=1"])
def test_another_version_is_installed(monkeypatch, condition):
    calls = []
    monkeypatch.setattr(pythons, "_install", lambda arguments, *_rest: calls.append(arguments))
    require_package("PyYAML", condition, NETLESS)
    assert calls == [[f"PyYAML{condition}"]]


@pytest.mark.parametrize("name", ["", "two words", "--index-url=evil", "x; rm"])
def test_what_is_no_package_name_is_refused(name):
    with pytest.raises(UsageError):
        require_package(name, "", NETLESS)


def test_failed_pip_is_told_with_its_last_lines_and_a_remedy(capsys):
    with pytest.raises(InstallError) as caught:
        require_package("a-package-that-nobody-has", "", ["--index-url", "file:///nowhere/simple"])
    text = str(caught.value)
    assert "No matching distribution found" in text
    assert "remedy:" in text
    assert "done" not in capsys.readouterr().out


def test_requirements_file_needs_pip_only_for_what_is_missing(tmp_path, monkeypatch):
    file = tmp_path / "requirements.txt"
    file.write_text(f"# comment\nPyYAML=={pythons.installed_version('PyYAML')}\n\nmsgspec>=0.1\n")
    monkeypatch.setattr(pythons, "_install", lambda *_args: pytest.fail("pip was called"))
    assert missing_of(file) == []
    require_file(file, NETLESS)
    file.write_text("PyYAML==0.0.1\nno_such.package\nmsgspec\n")
    assert missing_of(file) == ["PyYAML==0.0.1", "no_such.package"]


@pytest.mark.parametrize(
    ("lines", "number", "cause"),
    [
        (["no-such.package"], 1, "no-such.package"),
        ([f"none-{n}==1.0" for n in range(48)], 48, "none-0==1.0, none-1==1.0"),
    ],
)
def test_what_is_installed_is_named_by_its_number_and_file_and_what_is_missing_then_once(
    tmp_path, monkeypatch, lines, number, cause
):
    file, calls = tmp_path / "requirements.txt", []
    file.write_text("\n".join(["PyYAML", *lines]))
    monkeypatch.setattr(pythons, "_install", lambda *given: calls.append(given[1]))
    with pytest.raises(InstallError) as caught:
        require_file(file, NETLESS)
    assert calls == [f"install {number} packages of {file}"]
    assert str(caught.value).startswith(f"pip succeeded, but {number} packages of {file} are missing")
    assert caught.value.cause.startswith(cause) and str(caught.value).count(lines[0]) == 1


def test_hashes_are_no_part_of_a_requirement(tmp_path):
    file = tmp_path / "requirements.txt"
    file.write_text(
        "# made by make lock\nsix==1.17.0 \\\n    --hash=sha256:00 \\\n    --hash=sha256:11\nnumpy==2.4.6\n"
    )
    assert list(pythons.listed_packages(file)) == [("six", "==1.17.0"), ("numpy", "==2.4.6")]


def test_missing_requirements_file_is_told(tmp_path):
    with pytest.raises(InstallError, match="does not exist"):
        require_file(tmp_path / "requirements.txt", NETLESS)


def test_requirements_of_a_recipe_are_its_repositorys(tmp_path):
    assert pythons.requirements_of(str(tmp_path / "script" / "a")) == (tmp_path / "requirements.txt").resolve()


def test_package_goes_into_the_python_that_asks(tmp_path):
    """A real environment without the package, and a real wheel of it."""
    info = "tiny_for_test-1.2.dist-info"
    with zipfile.ZipFile(tmp_path / "tiny_for_test-1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-for-test\nVersion: 1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    venv.create(tmp_path / "venv", with_pip=False)
    code = (
        "from cm4vllm.engine.run.python_packages import *; "
        "print(require_package('tiny-for-test', '==1.2', [])); "
        "print(require_package('tiny-for-test', '>=1', ['--index-url', 'file:///nowhere']))"
    )
    done = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={
            "PYTHONPATH": f"{ROOT / 'src'}:{sysconfig.get_path('purelib')}",
            "PIP_FIND_LINKS": str(tmp_path),
            "PIP_NO_INDEX": "1",
        },
    )
    assert done.stdout.splitlines().count("1.2") == 2
    assert list((tmp_path / "venv").glob(f"lib/*/site-packages/{info}"))


@pytest.mark.parametrize(
    "left", ["tiny_for_test-1.2.dist-info", "tiny_for_test-1.2.egg-info", "tiny_for_test-1.2-py3.11.egg-info"]
)
def test_what_any_pip_installed_is_found(left, tmp_path, monkeypatch):
    file = tmp_path / "requirements.txt"
    file.write_text("tiny-for-test==1.2\n")
    (tmp_path / left).mkdir()
    assert missing_of(file) == ["tiny-for-test==1.2"]
    monkeypatch.syspath_prepend(tmp_path)
    assert missing_of(file) == []


def test_where_pip_installed_cm4vllm_nothing_is_missing(tmp_path, monkeypatch):
    file = tmp_path / "requirements.txt"
    file.write_text("no-such-package==1.0\n")
    assert missing_of(file) == ["no-such-package==1.0"]
    (tmp_path / "cm4vllm-0.1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert missing_of(file) == []


# --- a stub in a folder of PYTHONPATH that hides an installed package is named, with what to do


@pytest.mark.parametrize(
    ("module", "stub", "use"),
    [
        ("numpy", "", "import numpy.typing"),
        ("msgspec", "raise RuntimeError('a stub')", "import msgspec"),
        ("rich", "", "import rich; rich.print"),
    ],
)
@pytest.mark.parametrize("flags", [[], ["--plan"]])
def test_a_hidden_package_is_named(home, tmp_path, module, stub, use, flags):
    (tmp_path / "stubs").mkdir()
    (tmp_path / "stubs" / f"{module}.py").write_text(stub)
    at = "plan" if flags else "preprocess"
    home.script(
        "uses,it", customize=f"def {at}(i):\n    import sys\n    sys.modules.pop({module!r}, None)\n    {use}\n"
    )
    paths = f"{tmp_path / 'stubs'}:{home.env['PYTHONPATH']}"
    home.cli("find", "repo", "local")
    done = home.cli("run", "script", "--tags=uses,it", *flags, PYTHONPATH=paths)
    assert f"remedy: unset PYTHONPATH: its folder {tmp_path / 'stubs'} hides the installed {module}" in done.stderr
    assert done.returncode in (RecipeError.exit_code, 1)


def test_a_folder_that_hides_nothing_is_not_named(home, tmp_path):
    (tmp_path / "numpy_of_mine.py").touch()
    home.script("fails", customize="def preprocess(i):\n    import missing_for_test\n")
    done = home.cli("run", "script", "--tags=fails", PYTHONPATH=f"{tmp_path}:{home.env['PYTHONPATH']}")
    assert done.returncode == RecipeError.exit_code and "PYTHONPATH" not in done.stderr
