import json
import socket

import pytest

from cm4vllm.common.errors import CmError, UsageError
from cm4vllm.common.records import write_record
from cm4vllm.records.described_system import KEYS
from cm4vllm.records.server import ServerRecord
from cm4vllm.submission.system_records import SystemSettings, runs_here, write_system


def record(**changes):
    return ServerRecord(
        **{
            "endpoint": "http://127.0.0.1:8000",
            "model_name": "m",
            "max_model_len": 100,
            "version": "0.32.0",
            "owned": True,
            **changes,
        }
    )


@pytest.fixture
def settings(tmp_path):
    def make(server=None, **changes):
        write_record(tmp_path / "server.json", server or record(packages={"torch": "2.13.0+cpu"}))
        return SystemSettings(
            **{
                "folder": str(tmp_path / "system"),
                "server_record": str(tmp_path / "server.json"),
                "submitter": "Example",
                **changes,
            }
        )

    return make


def test_description_facts_and_template_are_written(settings, tmp_path):
    files = write_system(settings())
    assert tuple(json.loads(files.description.read_text())) == KEYS
    assert (tmp_path / "system" / "machine.json").is_file()
    assert files.template == tmp_path / "system" / "system.template.yaml"
    assert "cooling" in files.not_stated
    assert files.name.endswith("_vLLM-0.32.0")


def test_a_template_that_may_be_filled_in_is_never_overwritten(settings):
    files = write_system(settings())
    files.template.write_text("cooling: air\n")
    write_system(settings())
    assert files.template.read_text() == "cooling: air\n"


def test_a_description_that_the_user_wrote_or_edited_is_kept(settings, tmp_path):
    place = tmp_path / "system" / "system.json"
    place.parent.mkdir()
    place.write_text("mine")
    for _ in range(2):
        files = write_system(settings())
        assert tuple(json.loads(files.description.read_text())) == KEYS
    files.description.write_text("edited")
    write_system(settings())
    assert [(place.parent / f"kept{number}-system.json").read_text() for number in ("", "1")] == ["mine", "edited"]
    assert not (place.parent / "kept2-system.json").exists()


def test_with_a_system_file_no_template_is_written(settings, tmp_path):
    (tmp_path / "system.yaml").write_text("cooling: air\n")
    files = write_system(settings(system_file=str(tmp_path / "system.yaml"), name="Lab 1"))
    assert files.template is None
    assert not (tmp_path / "system" / "system.template.yaml").exists()
    assert "cooling" not in files.not_stated
    assert files.name == "Lab-1"


def test_without_a_server_record_there_is_an_error(settings, tmp_path):
    made = settings()
    (tmp_path / "server.json").unlink()
    with pytest.raises(CmError, match="ServerRecord"):
        write_system(made)


@pytest.mark.parametrize(
    ("endpoint", "here"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://localhost:8000", True),
        ("http://[::1]:8000", True),
        ("http://0.0.0.0:8000", True),
        ("http://198.51.100.7:8000", False),
        ("unix:///run/vllm.sock", True),
        ("http://no-such-host.invalid:8000", False),
    ],
)
def test_a_server_is_here_when_its_address_is_this_machines(endpoint, here):
    assert runs_here(endpoint) is here


def test_a_server_under_this_machines_own_name_is_here():
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        pytest.skip("this machine's name has no address")
    assert runs_here(f"http://{socket.gethostname()}:8000")


def test_a_statement_against_the_table_needs_its_owners_word(settings, tmp_path):
    stated = tmp_path / "system.yaml"
    stated.write_text("host_processor_model_name: AMD EPYC 9254\nhost_processor_core_count: 4\n")
    with pytest.raises(UsageError, match="the AMD EPYC 9254 has 24 cores"):
        write_system(settings(system_file=str(stated)))
    stated.write_text(stated.read_text() + "confirmed: [host_processor_core_count]\n")
    files = write_system(settings(system_file=str(stated)))
    assert json.loads(files.description.read_text())["host_processor_core_count"] == "4"
