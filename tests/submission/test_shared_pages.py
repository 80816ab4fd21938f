"""Pages of sections: what others wrote stays, byte for byte."""

from cm4vllm.submission.shared_pages import heading_of, sections, with_section, without_scenario, without_section

PAGE = """# Example

```bash
## a comment, no heading
```

## One

text

### Part of one

## Two: Offline, Server

more
"""


def test_the_parts_put_together_are_the_page():
    parts = sections(PAGE)
    assert [name for name, _ in parts] == ["", "One", "Two: Offline, Server"]
    assert "".join(text for _, text in parts) == PAGE


def test_a_part_is_added_and_replaced_and_the_rest_stays():
    added = with_section(PAGE, "Three", "new")
    assert added == PAGE + "\n## Three\n\nnew\n"
    assert with_section(added, "Three", "new") == added
    again = with_section(added, "One", "other")
    assert again == added.replace("text\n\n### Part of one\n", "other\n")
    assert without_section(again, "Three") == PAGE.replace("text\n\n### Part of one\n", "other\n")
    assert with_section("", "One", "x") == "## One\n\nx\n"


def test_a_scenario_goes_out_of_the_heading_and_the_part_with_the_last():
    left = without_scenario(PAGE, "Two", "Offline")
    assert left == PAGE.replace("## Two: Offline, Server", f"## {heading_of('Two', ['Server'])}")
    assert without_scenario(left, "Two", "Server") == PAGE.partition("\n## Two")[0]
    assert without_scenario(PAGE, "One", "Offline") == PAGE
