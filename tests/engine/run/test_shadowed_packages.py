"""A stub in a folder of PYTHONPATH that hides an installed package is named, with what to do."""

import pytest

from cm4vllm.common.errors import RecipeError


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
