import pytest
import yaml

from cm4vllm.common.errors import UsageError
from cm4vllm.hardware.machine_facts import detect_machine
from cm4vllm.hardware.system_description import SystemAsked, describe_system
from cm4vllm.hardware.system_file import read_system_file, template
from cm4vllm.records.described_system import not_stated

ASKED = SystemAsked(submitter="Example", division="open", system_type="datacenter", vllm="0.32.0", used=())


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "system.yaml"
        path.write_text(text)
        return path

    return write


def test_a_template_asks_for_everything_that_is_not_stated(server, written):
    description = describe_system(detect_machine(server), ASKED)
    asked = yaml.safe_load(template(description))
    assert set(not_stated(description)) <= set(asked)
    assert "submitter" not in asked
    assert "host_memory_capacity" not in asked


def test_an_untouched_template_changes_nothing(server, written):
    machine = detect_machine(server)
    description = describe_system(machine, ASKED)
    stated = read_system_file(written(template(description))).stated
    assert describe_system(machine, SystemAsked(**{**vars(ASKED), "stated": stated})) == description


def test_a_template_with_all_lines_uncommented_is_read(server, written):
    description = describe_system(detect_machine(server), ASKED)
    lines = [
        line.removeprefix("#") if line.startswith("#") and not line.startswith("# ") else line
        for line in template(description).splitlines()
    ]
    stated = read_system_file(written("\n".join(lines))).stated
    assert {key: description[key] for key in stated} == stated
    assert "host_processor_caches" in stated


def test_counts_and_texts_are_read(written):
    path = written('number_of_nodes: 2\nhost_network_card_count: "4"\ncooling: liquid\nstatus: Available\nhw_notes:\n')
    assert read_system_file(path).stated == {
        "number_of_nodes": "2",
        "host_network_card_count": "4",
        "cooling": "liquid",
        "status": "available",
    }


def test_what_stands_against_the_table_is_listed(written):
    path = written("host_processor_core_count: 56\nconfirmed: [host_processor_core_count]\n")
    assert read_system_file(path).confirmed == ("host_processor_core_count",)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("host_memory_configuration: undefined", "leave it empty"),
        ("cooling: TBD", "leave it empty"),
        ('cooling: "?"', "leave it empty"),
        ("confirmed: coling", "it lists keys"),
        ("confirmed: [coling]", "did you mean 'cooling'"),
        ("coling: air", "did you mean 'cooling'"),
        ("status: soon", "available, preview, rdi"),
        ("submitter: Me", "remove it from the file"),
        ("number_of_nodes: two", "whole number"),
        ("number_of_nodes: true", "whole number"),
        ("accelerator_frequency: 1980", "needs its unit"),
        ("cooling: [air]", "it is text"),
        ("hw_notes: see 10.1.2.3", "leave addresses out"),
        ("hw_notes: card 02:42:ac:11:00:02", "leave addresses out"),
    ],
)
def test_a_wrong_line_is_an_error_that_says_what_is_right(written, text, told):
    with pytest.raises(UsageError) as refused:
        read_system_file(written(text))
    assert told in refused.value.remedy


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words", "a: b: c"])
def test_what_is_not_a_list_of_keys_is_an_error(written, text):
    with pytest.raises(UsageError, match="is not"):
        read_system_file(written(text))


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="cannot read the system file"):
        read_system_file(tmp_path / "none.yaml")


def test_an_empty_file_states_nothing(written):
    assert read_system_file(written("")).stated == {}


def test_quotation_marks_do_not_reach_the_checkers_csv(written):
    assert read_system_file(written("hw_notes: 'the \"fast\" one'")).stated == {"hw_notes": "the 'fast' one"}
