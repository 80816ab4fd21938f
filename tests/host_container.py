"""An image whose containers see this machine's own programs: what tests of real containers run, without a registry.

The image holds the folders of a root file system and nothing else; /usr, the Python of the tests and further folders
are mounted. It has a digest as every image has.
"""

import io
import os
import resource
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from commands import need

ROOT = Path(__file__).parents[1]
_FOLDERS = ("dev", "etc", "proc", "root", "run", "sys", "tmp", "usr", "var")
#: A configuration of podman for root on a machine without systemd, which may not raise its limits.
_CONFIGURATION = """
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]
"""


@dataclass(frozen=True)
class HostContainer:
    """The image, the options that mount this machine's programs, and the environment that podman needs."""

    image: str
    options: str
    env: dict[str, str]

    def podman(self, *words: str) -> str:
        done = subprocess.run(
            ["podman", *words], capture_output=True, text=True, check=False, env=os.environ | self.env
        )
        return done.stdout.strip()

    def containers(self) -> list[str]:
        """Return the containers of the image that exist, running or not."""
        identity = self.podman("image", "inspect", "--format", "{{.Id}}", self.image)
        return self.podman("ps", "--all", "--quiet", f"--filter=ancestor={identity}").split()


@contextmanager
def host_container(folder: Path, *mounted: Path) -> Iterator[HostContainer]:
    """Make the image for a while; `mounted` are further folders. Skips the test where podman cannot run a container."""
    need("podman")
    env = {} if os.environ.get("CONTAINERS_CONF") else {"CONTAINERS_CONF": str(_configuration(folder))}
    archive = folder / "image.tar"
    with tarfile.open(archive, "w") as file:
        for name in _FOLDERS:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            file.addfile(entry)
        for link in (path for path in Path("/").iterdir() if path.is_symlink() and path.name not in _FOLDERS):
            entry = tarfile.TarInfo(link.name)
            entry.type, entry.linkname = tarfile.SYMTYPE, str(link.readlink())
            file.addfile(entry)
        # Each image has an identity of its own: tests of others may run beside these.
        for name, text in (("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n"), ("etc/identity", uuid4().bytes)):
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            file.addfile(entry, io.BytesIO(text))
    places = dict.fromkeys(["/usr", sys.base_prefix, str(ROOT), *map(str, mounted)])
    options = " ".join(f"--volume={place}:{place}:ro" for place in places)
    made = HostContainer(f"localhost/cm4vllm-host:{uuid4().hex[:8]}", options, env)
    made.podman("import", str(archive), made.image)
    tried = subprocess.run(
        ["podman", "run", "--rm", "--network=host", *options.split(), made.image, "/usr/bin/true"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | env,
    )
    try:
        if tried.returncode:
            pytest.skip(f"podman cannot run a container here: {(tried.stderr.splitlines() or [''])[-1]}")
        yield made
    finally:
        made.podman("rmi", "--force", made.image)


def _configuration(folder: Path) -> Path:
    files, processes = (resource.getrlimit(limit)[1] for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
    path = folder / "containers.conf"
    limits = {"files": files if files > 0 else 65536, "processes": min(processes, 16384) if processes > 0 else 16384}
    path.write_text(_CONFIGURATION.format(**limits))
    return path
