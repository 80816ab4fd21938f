"""Programs that try to leave the sandbox, or to take more than their share, are held; others run as they do outside."""

import os
import re
import shutil
import subprocess
import time

import pytest

from cm4vllm.accuracy.graders.sandbox import MIB, PYTHON, Limits, Sandbox, sandbox_lacks

LIMITS = Limits(memory_bytes=256 * MIB, files_bytes=8 * MIB, processes=40)


@pytest.fixture(autouse=True)
def _needs_a_sandbox(request):
    if "without" not in request.node.name and (why := sandbox_lacks()):
        pytest.skip(why)


def run(program, seconds=20.0):
    """Run a Python program in the sandbox; return its exit status, what it printed, and why it was held."""
    with Sandbox(LIMITS).start([str(PYTHON), "-I", "-c", program]) as (process, held):
        try:
            printed, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None, "", "time"
    return process.returncode, printed.decode(), held.why


def test_a_harmless_program_runs_and_the_network_is_out_of_reach():
    assert run("import tempfile; open(tempfile.mkstemp()[1], 'w').write('x'); print(6 * 7)") == (0, "42\n", "")
    program = """
import socket, os
for family, address in ((socket.AF_INET, ("1.1.1.1", 53)), (socket.AF_INET, ("127.0.0.1", 22))):
    try:
        socket.socket(family).connect(address)
        print("connected")
    except OSError as error:
        print(type(error).__name__)
print(sorted(os.listdir("/sys")) if os.path.exists("/sys") else "no /sys")
"""
    assert run(program)[1].split("\n")[:3] == ["OSError", "ConnectionRefusedError", "no /sys"]


def test_nothing_outside_can_be_written_or_read(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("token")
    places = [*"/x /usr/x /etc/x /dev/x /limited.py /proc/sys/kernel/core_pattern".split(), str(secret), "/root/x"]
    program = f"""
for path in {places!r}:
    for mode in "wr":
        try:
            open(path, mode).close()
            print(path, mode)
        except OSError:
            pass
"""
    readable = ["/limited.py r", "/proc/sys/kernel/core_pattern r"]
    assert run(program)[1].splitlines() == readable
    assert secret.read_text() == "token"


def test_the_users_environment_and_processes_stay_outside(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    _, printed, _ = run("import os; print(sorted(os.environ), open('/proc/1/environ').read())")
    assert "HF_TOKEN" not in printed and "hf_secret" not in printed
    assert "'PATH'" in printed
    _, printed, _ = run("import os; print([int(pid) for pid in os.listdir('/proc') if pid.isdigit()])")
    assert max(map(int, re.findall(r"\d+", printed))) < 20


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import os\nwhile True:\n    try:\n        os.fork()\n    except OSError: pass", "more than 40 processes"),
        (
            "import os, time\nfor _ in range(9):\n    if not os.fork():\n        break\n"
            "x = bytearray(b'x' * 60_000_000)\ntime.sleep(60)",
            "more than 256 MiB of memory",
        ),
        (
            "import mmap, time\nx = mmap.mmap(-1, 1 << 30)\nfor at in range(0, 1 << 30, 1 << 20):\n"
            "    x[at : at + (1 << 20)] = bytes(b'x' * (1 << 20))\ntime.sleep(60)",
            "more than 256 MiB of memory",
        ),
    ],
    ids=["fork-bomb", "memory-of-many", "shared-memory"],
)
def test_what_processes_take_together_is_held(program, why):
    status, _, held = run(program)
    # The kernel holds the processes of a user who is not root: such a program goes on, without growing.
    assert held == why or (held == "time" and os.geteuid() and "processes" in why)
    assert status != 0


def test_no_memory_is_taken_that_belongs_to_no_process():
    """Files in memory, segments and mounts in a further user namespace are counted at none of its processes."""
    program = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
new_user, new_mount = 0x10000000, 0x20000
for name, call in {
    "memfd_create": lambda: libc.memfd_create(b"x", 0),
    "shmget": lambda: libc.shmget(0, ctypes.c_size_t(4096), 0o1600),
    "msgget": lambda: libc.msgget(0, 0o1600),
    "unshare": lambda: libc.unshare(new_user | new_mount),
    "clone": lambda: libc.syscall({"x86_64": 56, "aarch64": 220}[os.uname().machine], new_user | 17, 0, 0, 0, 0),
    "keyctl": lambda: libc.syscall({"x86_64": 250, "aarch64": 219}[os.uname().machine], 0, -3, 1),
}.items():
    if (done := call()) == 0 and name == "clone":
        os._exit(0)
    print(name, done)
"""
    status, printed, _ = run(program)
    assert printed.split("\n")[:-1] == [
        f"{name} -1" for name in ("memfd_create", "shmget", "msgget", "unshare", "clone", "keyctl")
    ]
    assert status == 0


def test_one_process_is_held_by_the_kernel():
    status, printed, _ = run("try:\n    x = bytearray(300_000_000)\nexcept MemoryError: print('no memory')")
    assert (status, printed) == (0, "no memory\n")
    status, printed, _ = run(
        "try:\n    open('/tmp/x', 'wb').write(bytes(9_000_000))\nexcept OSError as error: print(error.errno)"
    )
    assert status != 0 or printed in ("27\n", "28\n")  # the file is too large, or no space is left


def test_an_endless_loop_ends_with_the_sandbox():
    begin = time.monotonic()
    assert run("while True: pass", seconds=0.5)[2] == "time"
    assert time.monotonic() - begin < 30


def test_nothing_started_inside_outlives_it():
    mark = f"sleep 98{os.getpid()}"
    run(f"import subprocess; subprocess.Popen({mark!r}.split(), start_new_session=True)")
    assert mark not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def test_nothing_is_left_of_a_sandbox_that_is_ended_while_it_starts():
    """Its first process waits for bwrap without a limit of time before it is bound to it."""
    mark = f"mark{os.getpid()}"
    for number in range(150):
        with Sandbox(LIMITS).start(["true", mark]):
            time.sleep(number % 30 / 5000)
    deadline = time.monotonic() + 30
    while left := [line for line in command_lines() if mark in line]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def command_lines():
    """Return the command lines of all processes."""
    return subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_machine_without_bubblewrap_is_told_the_command(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    sandbox_lacks.cache_clear()
    try:
        assert "apt-get install bubblewrap" in sandbox_lacks()
        refusing = tmp_path / "bwrap"
        refusing.write_text(
            f"#!{shutil.which('sh', path='/bin:/usr/bin')}\necho 'setting up uid map: Permission denied' >&2\nexit 1\n"
        )
        refusing.chmod(0o755)
        sandbox_lacks.cache_clear()
        assert "setting up uid map: Permission denied" in sandbox_lacks()
        assert "user.max_user_namespaces" in sandbox_lacks()
    finally:
        sandbox_lacks.cache_clear()
