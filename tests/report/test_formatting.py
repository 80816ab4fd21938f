import subprocess
from pathlib import Path

import msgspec
import pytest

from cm4vllm.common import number_texts
from cm4vllm.records.server import ContainerRecord, ServerRecord
from cm4vllm.report import reproduction
from cm4vllm.results import figure_texts


@pytest.mark.parametrize(
    ("write", "values"),
    [
        (
            number_texts.number,
            {
                7350879.6: "7,350,879.6",
                38.391408: "38.391408",
                13368: "13,368",
                8123.0: "8,123",
                0.012345678: "0.01235",
                0: "0",
            },
        ),
        (number_texts.rate, {1871.84: "1,871.84", 6.31405: "6.31", 0.0312: "0.0312", 0: "0.00"}),
        (
            figure_texts.headroom,  # never rounded to all or nothing
            {0.75: "75.0% left", 0.9998: "99.98% left", -0.123: "exceeded by 12.3%", 0: "none left"},
        ),
        (number_texts.seconds, {0.0225: "0.0225 s", 3892.3: "3,892.3 s (64.9 min)", 31.5: "31.5 s"}),
        (number_texts.ms, {0.00434: "0.00434", 5.384: "5.38", 76.86: "76.9", 319.46: "319.5", 4147.7: "4,148"}),
        (number_texts.time_text, {"2026-11-20T11:59:30+02:00": "2026-11-20 09:59 UTC"}),
    ],
)
def test_a_figure_is_written_with_the_digits_that_say_something(write, values):
    assert {value: write(value) for value in values} == values


SERVER = ServerRecord(endpoint="", model_name="m", max_model_len=1, version="", owned=True)


def test_the_servers_command_is_the_same_command_to_a_shell(tmp_path):
    folder = str(tmp_path / "it's a model")
    words = ["%s\\n", "plain", "--a=b c", f"--model={folder}", f"{folder}/sub dir", "--x", '$HOME "q"', "-1"]
    server = msgspec.structs.replace(SERVER, argv=["/usr/bin/printf", *words], env={"SOME": "a b"})
    line = reproduction.server_command(server, folder)
    assert folder not in line and line.count("\n") >= 3
    shown = subprocess.run(
        ["bash", "-c", line], env={"MODEL": folder, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True
    ).stdout
    assert shown.splitlines() == words[1:]


def test_secrets_are_left_out():
    argv = ["vllm", "--api-key", "sk-1", "--hf_token=sk-2", "--max-num-batched-tokens=2048", "--seed", "1"]
    line = reproduction.server_command(
        msgspec.structs.replace(SERVER, argv=argv, env={"HF_TOKEN": "sk-3", "OMP_NUM_THREADS": "2"}), ""
    )
    assert "sk-" not in line
    assert [
        name in line
        for name in ('--api-key "${API_KEY:?}"', '--hf_token="${HF_TOKEN:?}"', 'HF_TOKEN="${HF_TOKEN:?}" \\')
    ] == [True, True, True]
    assert "--max-num-batched-tokens=2048" in line and "OMP_NUM_THREADS=2" in line


def test_a_typed_command_names_no_folder_and_no_server_of_this_machine():
    server = msgspec.structs.replace(
        SERVER, endpoint="http://gpu07.lab.example:8000", replicas=["http://10.1.2.3:8000"]
    )
    line = reproduction.typed_command(
        "cm run script --tags=a,b --output_dir=/home/alice/results --path=/home/alicebob "
        "--api_server=http://gpu07.lab.example:8000,http://10.1.2.3:8000",
        server,
    )
    assert [word.strip(" \\") for word in line.splitlines()[2:]] == [
        '--output_dir="${OUTPUT_DIR:?}"',
        '--path="${GIVEN_PATH:?}"',
        '--api_server="${API_SERVER:?},${API_SERVER_2:?}"',
    ]
    assert reproduction.typed_command("cm --api_server=http://127.0.0.1:8000", SERVER).endswith(
        "=http://127.0.0.1:8000"
    )
    assert reproduction.typed_command("not 'closed", SERVER) == "not 'closed"


def test_the_command_of_a_container_has_the_models_variable_in_its_mount():
    container = ContainerRecord(
        engine="podman",
        engine_version="4.3.1",
        image="vllm:1",
        digest="sha256:12",
        reference="docker.io/vllm@sha256:12",
        device="cuda",
        mounts=["/models/m:ro"],
        passed=["HF_TOKEN"],
    )
    server = msgspec.structs.replace(SERVER, argv=["python3", "serve", "/models/m"], container=container)
    assert reproduction.container_command(server, "/models/m").replace(" \\\n   ", "") == (
        "podman run --rm --network=host --device=nvidia.com/gpu=all "
        '--volume="${MODEL:?}:${MODEL:?}:ro" --env HF_TOKEN --entrypoint=python3 docker.io/vllm@sha256:12 '
        'serve "${MODEL:?}"'
    )
    assert reproduction.container_command(SERVER, "/models/m") == ""


def test_the_servers_command_names_no_folder_of_this_machine():
    plugin = Path(reproduction.__file__).parents[1] / "serving" / "options" / "fp8_plugin"
    server = ServerRecord(
        endpoint="",
        model_name="m",
        max_model_len=1,
        version="",
        owned=True,
        argv=["/v/bin/python", "serve", "/models/m", "--chat-template", "/srv/t.jinja"],
        env={"PYTHONPATH": str(plugin)},
    )
    line = reproduction.server_command(server, "/models/m")
    assert line == (
        'PYTHONPATH="${CM4VLLM:?}/serving/options/fp8_plugin" \\\n    python serve "${MODEL:?}" \\\n'
        '    --chat-template "${CHAT_TEMPLATE:?}"'
    )
