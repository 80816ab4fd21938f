"""Images of recipes. No daemon runs beside these tests, which check the files and commands that one would be given."""

import json
import subprocess

import pytest

from cm4vllm.engine.tools import docker


@pytest.fixture
def written(home):
    """Return what the command line gives and the folder that it writes."""

    def write(*words, action="dockerfile", **env):
        done = home.cli(action, "script", *words, **env)
        return done, home.work / "docker-one"

    home.script(
        "one",
        {
            "input_mapping": {"who": "CM_WHO"},
            "docker": {"shm_size": "2g", "all_gpus": "yes"},
            "variations": {"v": {"docker": {"base_image": "debian:trixie", "mounts": ["/a:/b"]}}},
        },
    )
    return write


def test_the_folder_holds_all_that_the_image_needs(home, written, tmp_path):
    subprocess.run(["git", "init", "-q", home.repo], check=True)
    (home.repo / ".gitignore").write_text("secret.txt\n")
    (home.repo / "secret.txt").write_text("x")
    done, folder = written("--tags=one", "--who=me and you")
    assert done.returncode == 0, done.stderr
    assert (folder / "repos" / "cm4vllm" / "automation" / "script" / "module.py").is_file()
    assert not (folder / "repos" / "synthetic" / "secret.txt").exists()
    text = (folder / "Dockerfile").read_text()
    entry = json.loads(next(line for line in text.splitlines() if line.startswith("ENTRYPOINT")).partition(" ")[2])
    assert entry == ["cm", "run", "cm4vllm:script", "--tags=one", "--who=me and you", "--quiet"]
    # The command of the image, in a home made as the image makes it.
    inside = tmp_path / "inside"
    inside.mkdir()
    for repo in ("cm4vllm", "synthetic"):
        assert home.cli("add", "repo", f"--path={folder / 'repos' / repo}", CM_REPOS=str(inside)).returncode == 0
    assert home.cli(*entry[1:], CM_REPOS=str(inside)).returncode == 0


def test_a_meta_says_what_its_container_needs(written):
    done, folder = written("--tags=one,_v")
    assert "FROM debian:trixie" in (folder / "Dockerfile").read_text()
    run = next(line for line in done.stdout.splitlines() if line.startswith("docker run"))
    for word in ("--gpus=all", "--shm-size=2g", "--volume=/a:/b", f"{folder}/work:/home/cm/work"):
        assert word in run
    assert "FROM mine" in (written("--tags=one", "--docker_base_image=mine")[1] / "Dockerfile").read_text()


def test_a_token_goes_in_by_its_name_only(written):
    done, folder = written("--tags=one", HF_TOKEN="very-secret")
    assert "--env HF_TOKEN" in done.stdout
    assert "very-secret" not in done.stdout + (folder / "Dockerfile").read_text()


def test_a_variable_that_a_flag_names_goes_in_too(home, written):
    home.script("one", {"input_mapping": {"api_key_env": "CM_API_KEY_ENV"}})
    done, folder = written("--tags=one", "--api_key_env=MY_OWN", MY_OWN="very-secret")
    assert "--env MY_OWN" in done.stdout
    assert "very-secret" not in done.stdout + (folder / "Dockerfile").read_text()


@pytest.mark.parametrize("script", ["", "#!/bin/sh\necho 'no daemon' >&2; exit 1\n"])
def test_without_docker_the_dockerfile_is_there_all_the_same(written, tmp_path, script):
    folder = tmp_path / "bin"
    folder.mkdir()
    if script:
        (folder / "docker").write_text(script)
        (folder / "docker").chmod(0o755)
    done, made = written("--tags=one", action="docker", PATH=f"{folder}")
    assert done.returncode == 42
    assert "no daemon" in done.stderr or "`docker` not found on PATH" in done.stderr
    assert (made / "Dockerfile").is_file()
    assert written("--tags=one", "--no_run", action="docker", PATH=f"{folder}")[0].returncode == 0


@pytest.mark.parametrize(("status", "code"), [(0, 0), (3, 50)])
def test_docker_builds_then_runs(written, tmp_path, status, code):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "docker").write_text(f"#!/bin/sh\necho $1 >> {tmp_path}/calls\n[ $1 != build ] || exit {status}\n")
    (folder / "docker").chmod(0o755)
    done, _ = written("--tags=one", action="docker", PATH=f"{folder}:/usr/bin:/bin")
    assert done.returncode == code
    calls = (tmp_path / "calls").read_text().split()
    assert calls == (["info", "build", "run"] if not status else ["info", "build"])
    if status:
        assert "docker build ended with exit status 3" in done.stderr


def test_every_line_of_the_dockerfile_is_an_instruction_or_goes_on(home):
    folder = home.script("one")
    from cm4vllm.engine.format.meta import load_script

    image = docker.image_of(load_script(str(folder), "synthetic"), {"tags": "one"})
    text = docker.dockerfile(image, ["cm4vllm", "synthetic"])
    lines = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert {line.split()[0] for line in lines} == {"FROM", "ENV", "RUN", "ARG", "USER", "WORKDIR", "COPY", "ENTRYPOINT"}
    assert image.command[3] == "--tags=one"
