"""Ray beside a vLLM: an environment of its own that sees all of the vLLM's packages, which stays as it is."""

from pathlib import Path

from cm4vllm.common.files import require_space, write_text
from cm4vllm.common.programs.environments import checked, make_environment, pip, site_packages
from cm4vllm.common.programs.processes import run
from cm4vllm.common.progress import step

#: All machines of a cluster need the same one; vLLM 0.32 asks for 2.48 or newer.
RAY_RELEASE = "2.60.0"

#: Measured: 285 MB unpacked, and the downloads beside them.
SPACE_BYTES = 10**9


def install_ray(python: Path, folder: Path, release: str = RAY_RELEASE) -> tuple[Path, str]:
    """Make an environment over that of `python` (a vLLM's) in `folder`/venv; return its Python and Ray's release.

    Ray's own dependencies are held at the versions that the vLLM has, so that both import the same.
    Raises InstallError.
    """
    require_space(folder, SPACE_BYTES, "Ray")
    venv = folder / "venv"
    with step(f"Ray {release}"):
        frozen = checked(pip(python, [], action="freeze"), "the packages of the vLLM cannot be listed").output
        constraints = folder / "vllm-packages.txt"
        write_text(constraints, "".join(f"{line}\n" for line in frozen.splitlines() if "==" in line))
        site = checked(
            run([python, "-P", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]),
            "the vLLM's Python does not run",
        ).output.strip()
        own = make_environment(venv, python)
        checked(
            pip(own, ["-c", str(constraints), f"ray=={release}"], folder / "pip-ray.log"),
            f"Ray {release} cannot be installed",
        )
        write_text(site_packages(venv) / "vllm-environment.pth", f"{site}\n")
        record = checked(
            run([own, "-P", "-c", "import ray, vllm; print(ray.__version__)"], env={"PYTHONPATH": ""}),
            "Ray and vLLM cannot be imported together",
        ).output
    return own, record.splitlines()[-1]
