"""Every place that removes, replaces or ends something: what it may touch, and the mark by which it knows that.

A call that is not listed fails: what a user has may be removed by `common/folders/owned_folders.py` alone, which knows
it by its note. A name's pattern, an age or a place is no mark. What is written over a file is not listed here: nearly
all writes go to folders in the making, and no name of a call shows which.
"""

import ast
from collections import Counter
from pathlib import Path

import pytest

from syntax import nodes_of

pytestmark = pytest.mark.xdist_group("source")

ROOT = Path(__file__).resolve().parents[1]
#: Calls of these names remove, replace or end something, whatever they are called on.
CALLS = set(
    "kill killpg move pidfd_send_signal removedirs rename renames rmdir rmtree send_signal terminate unlink".split()
)
#: `replace` and `remove` are also methods of texts and lists: only those of `os`, and of one argument on a path, count.
OF_OS = {"remove", "replace"}
#: The option by which `python -m venv` empties a folder first.
EMPTYING = "--clear"
#: Methods of these classes are ours and end what the object itself started.
OWN_METHODS = {"self.kill"}


def removals(path: Path) -> Counter[str]:
    names: Counter[str] = Counter()
    for node in nodes_of(path):
        if isinstance(node, ast.Name) and node.id in CALLS:
            names[node.id] += 1
        elif isinstance(node, ast.Attribute) and node.attr in CALLS and ast.unparse(node) not in OWN_METHODS:
            names[node.attr] += 1  # also where it is handed on and called elsewhere
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in OF_OS:
            of_os = ast.unparse(node.func.value) == "os"
            names[node.func.attr] += of_os or is_path_replaced(node)
        elif isinstance(node, ast.Constant) and node.value == EMPTYING:
            names[EMPTYING] += 1
    return +names


def is_path_replaced(call: ast.Call) -> bool:
    """Return True if a call is Path.replace(target): texts take two arguments, times and records take keywords."""
    alone = len(call.args) == 1 and not call.keywords and not isinstance(call.args[0], ast.Starred)
    return alone and ast.unparse(call.func).endswith(".replace")


#: Each place by its file: its calls, what they may touch, and the mark by which that is known to be ours.
PLACES = {
    "accuracy/graders/inside/mbxp.py": ({"kill": 1}, "a worker that it started", "its Popen object"),
    "accuracy/graders/sandbox.py": ({"killpg": 1}, "the process group of a grader that it started", "its Popen object"),
    "assets/quantization.py": ({"kill": 1}, "a process that it started", "its Popen object"),
    "serving/installation/install.py": (
        {"unlink": 2},
        "the record of an environment that generates no token; the note that an environment is not proved",
        "the note tmp-not-proved, which install wrote into the same folder",
    ),
    "assets/downloads/hub.py": (
        {"unlink": 3},
        "a file of the hub's cache with wrong content, with its link; unfinished files that came during our download",
        "a blob named by its digest, behind a link of the hub's; not among the files that were there before",
    ),
    "assets/samples/picture_dataset.py": ({"unlink": 1}, "the rows that it read", "it lies in a scratch folder's copy"),
    "assets/downloads/resumed_download.py": (
        {"replace": 1, "unlink": 4},
        "NAME.part of a file that is downloaded; NAME, which does not exist",
        "the part's digest, of which nothing else is accepted",
    ),
    "campaign/kept_results.py": (
        {"rename": 1},
        "folders of an attempt below the results folder, moved to attempts/, which the ledger names",
        "nothing is removed",
    ),
    "campaign/live/monitor.py": (
        {"unlink": 1, "replace": 1},
        "status.json of the results folder and the file that it is written to first",
        "the lock of the results folder",
    ),
    "common/programs/checkout_environment.py": (
        {"rename": 1, "rmdir": 1, "rmtree": 2, "unlink": 1},
        "the environment of the checkout; what else stands at its place is moved to a new name",
        "its record, which is written first; its lock",
    ),
    "common/programs/environments.py": (
        {EMPTYING: 1},
        "a virtual environment in an entry of CM's cache",
        "the folder of the entry is the engine's, by the entry's meta with its key",
    ),
    "common/files.py": (
        {"replace": 1, "unlink": 1},
        "the file that a caller writes whole; the temporary file that was made for it",
        "mkstemp made it; what a user names is written by write_noted",
    ),
    "common/git/git_objects.py": ({"kill": 1}, "a git that it started", "its Popen object"),
    "common/kept_values.py": ({"replace": 1}, "a value below our folder in the user's cache", "the cache is ours"),
    "common/folders/owned_folders.py": (
        {"rename": 6, "rmdir": 4, "unlink": 6},
        "results, files that a user named; of a killed command one file, where it makes no more",
        "the note beside them: size and time of each file; inode, time of birth and lock of a folder in the making",
    ),
    "common/folders/ownership_notes.py": (
        {"rmtree": 1, "unlink": 1},
        "notes; folders of random names for temporary files, which a killed command left",
        "the note's name; inode, time of birth and lock of the folder",
    ),
    "common/programs/processes.py": ({"kill": 1, "killpg": 1}, "a process that it started; itself", "its Popen object"),
    "common/records.py": ({"unlink": 1}, "a record", "its fields; anything else is moved to a new name"),
    "engine/cache/entries.py": (
        {"rmtree": 2, "rename": 2, "unlink": 1},
        "entries of CM's cache below the CM home, and what a renewal set aside in .locks",
        "the entry's meta with its key, and the lock of the key",
    ),
    "engine/run/execution.py": (
        {"unlink": 1},
        "files in the folder of a recipe that the recipe's meta asks to remove (clean_files)",
        "the recipe names each; one outside the folder is refused",
    ),
    "engine/run/helpers.py": ({"unlink": 1}, "tmp-run.sh and its fellows", "names that CM's recipes are given"),
    "engine/run/script_run.py": ({"unlink": 1}, "tmp-run-env.out, tmp-run-state.json", "names of CM's protocol"),
    "engine/run/session.py": (
        {"move": 1, "unlink": 1},
        "logs of failed shell files in the folder logs of the CM home; the logs of a cache entry that failed",
        "the folder is the engine's own; the lock of the entry",
    ),
    "engine/run/shell_script.py": (
        {"unlink": 1, "killpg": 1},
        "the log of a shell file that ended well; the process group that it started",
        "it opened the log; its Popen object",
    ),
    "engine/tools/register.py": ({"unlink": 1}, "index.json of the CM home", "cmind makes it again"),
    "loadgen/client/workers.py": ({"kill": 1}, "workers that it started", "its process objects"),
    "loadgen/process/kept_answers.py": (
        {"unlink": 2},
        "the answers that are kept of a run, beside its folder",
        "the first line, in which a run began",
    ),
    "loadgen/process/machine_load.py": ({"kill": 1}, "samplers that it started", "its Popen objects"),
    "loadgen/process/process_monitor.py": (
        {"unlink": 1, "kill": 1},
        "the settings in the folder of a run in the making; the LoadGen process",
        "it wrote the file; its Popen object",
    ),
    "loadgen/process/runner.py": (
        {"unlink": 1},
        "LoadGen's empty trace in a folder in the making",
        "the folder's note",
    ),
    "loadgen/process/selfcheck.py": ({"kill": 1}, "a process that it started", "its Popen object"),
    "power/making.py": (
        {"rmtree": 1, "killpg": 1},
        "a folder in a scratch folder; the official client",
        "it made the scratch folder; its Popen object",
    ),
    "power/programs.py": ({"send_signal": 1, "kill": 1}, "the official server", "its Popen object"),
    "serving/clusters/ray_cluster.py": (
        {"rmtree": 1},
        "Ray's folder for temporary files",
        "mkdtemp made it for a node that this process started",
    ),
    "serving/server_container.py": ({"rename": 1}, "a folder in our part of the user's cache", "nothing is replaced"),
    "serving/end_with_supervisor/sitecustomize.py": ({"kill": 1}, "itself", "its own process ID"),
    "serving/in_container/first_process.py": (
        {"kill": 1, "killpg": 1},
        "the program that it started in its container",
        "its process ID, which it waits for",
    ),
    "serving/supervision/ipc_files.py": (
        {"rmtree": 2, "unlink": 1},
        "the folder of a program's sockets, and the shared memory that the program used",
        "the folder's note and lock; each name in shared memory with its inode",
    ),
    "serving/supervision/own_supervisors.py": (
        {"kill": 2, "pidfd_send_signal": 1},
        "supervisors and, where they do not end, their descendants; processes of servers whose supervisor is gone",
        "its Popen object, or a specification in the command line of the process; the supervisor's pipe in their "
        "environment, in the same PID namespace",
    ),
    "serving/server.py": (
        {"unlink": 1},
        "logs of the nodes of an earlier start",
        "the record of the node's report, which is written before its logs are begun",
    ),
    "serving/supervisor.py": (
        {"kill": 1, "unlink": 1},
        "descendants; log and state of an earlier start",
        "it is their subreaper; the specification of that start names them",
    ),
    "submission/archive.py": ({"kill": 1}, "the program that encrypts", "its Popen object"),
    "submission/published_program.py": ({"rmtree": 1}, "a version of the program in the copy of a tree", "the copy"),
    "submission/result_removal.py": (
        {"rmtree": 4, "unlink": 4},
        "results in the copy of a tree, which its user named with --remove",
        "it made the copy; files of others in the tree are kept beside it",
    ),
}
#: A text and an environment have a method of one argument named `replace`, too.
NO_PATHS = {"campaign/execution.py": {"replace": 1}}


def test_each_removal_replacement_and_end_is_listed_with_its_mark():
    there = {}
    for top in ("src/cm4vllm", "script", "automation"):
        for path in sorted((ROOT / top).rglob("*.py")):
            if calls := removals(path):
                there[path.relative_to(ROOT / "src/cm4vllm" if top.startswith("src") else ROOT).as_posix()] = dict(
                    calls
                )
    listed = {name: calls for name, (calls, _, _) in PLACES.items()} | NO_PATHS
    assert {name: calls for name, calls in there.items() if listed.get(name) != calls} == {}
    assert sorted(PLACES.keys() - there.keys()) == []


def test_shell_files_remove_and_end_nothing():
    words = {"rm", "mv", "rmdir", "unlink", "kill", "pkill", "killall"}
    for path in [*ROOT.glob("script/**/*.sh"), *ROOT.glob("automation/**/*.sh")]:
        lines = [line.split("#")[0].split() for line in path.read_text(encoding="utf-8").splitlines()]
        assert not [line for line in lines if words & set(line)], path


def test_the_list_finds_what_is_written_in_another_way(tmp_path):
    program = tmp_path / "a.py"
    program.write_text(
        "import os, shutil\nfrom shutil import rmtree\nrmtree('a')\nos.replace('a', 'b')\n"
        "path.replace(other)\nshutil.move('a', 'b')\ntext.replace('a', 'b')\nos.remove('a')\nnames.remove('a')\n"
    )
    assert removals(program) == {"rmtree": 1, "replace": 2, "move": 1, "remove": 1}
