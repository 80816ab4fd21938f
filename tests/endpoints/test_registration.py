"""The registration of a curve's points by the official program, with a site of the test's own."""

import io
import tarfile

import pytest
from made_points import BENCHMARK, POINTS, change_json, measured_points
from submission_site import Site

from cm4vllm.campaign.endpoints.job import run_job
from cm4vllm.campaign.endpoints.settings import EndpointsJob, EndpointsSettings
from cm4vllm.common.errors import SubmissionError, UsageError
from cm4vllm.common.records import read_record
from cm4vllm.endpoints.registration import REGISTRATION_FILE, Registration, register_points

TOKEN, ORGANISATION = "mlc_made-up-for-this-test", "Example"


@pytest.fixture
def site(monkeypatch):
    """The test's own site, at the address that the official program takes."""
    with Site() as site:
        monkeypatch.setenv("MLPERF_API_BASE_URL", site.address)
        monkeypatch.setenv("PRISM_USER_API_TOKEN", TOKEN)
        yield site


@pytest.fixture
def folder(tmp_path):
    """Run folders of a whole curve with their records, two points of it, to be registered."""
    return measured_points(tmp_path / "points", POINTS[:2])


def never(question):
    raise AssertionError(question)


def test_each_point_is_registered_once_after_one_question(checker, site, folder, capsys):
    asked = []
    record = register_points(checker, folder, ORGANISATION, lambda question: not asked.append(question))
    (question,) = asked
    assert f"2 points are registered for {ORGANISATION} at {site.address}" in question
    assert str(folder / "point-8") in question and TOKEN not in question
    assert site.tokens == {TOKEN} and list(site.archives) == ["run-1", "run-2"]
    assert [run["point_config"]["concurrency"] for run in site.runs.values()] == [8, 11]
    with tarfile.open(fileobj=io.BytesIO(site.archives["run-1"])) as archive:
        assert "point-8/config.yaml" in archive.getnames()
    assert {name: made.run for name, made in record.runs.items()} == {"point-8": "run-1", "point-11": "run-2"}
    assert read_record(folder / REGISTRATION_FILE, Registration) == record
    assert register_points(checker, folder, ORGANISATION, never) == record
    assert "registered: point-8 as run run-1" in capsys.readouterr().out


def test_without_consent_nothing_is_sent(checker, site, folder):
    with pytest.raises(UsageError, match="nothing was registered"):
        register_points(checker, folder, ORGANISATION, lambda question: False)
    assert site.asked == [] and not (folder / REGISTRATION_FILE).exists()


def test_a_point_that_is_refused_has_the_words_of_the_program_and_is_registered_by_the_next_command(
    checker, folder, monkeypatch
):
    with Site(refused=2) as site:
        monkeypatch.setenv("MLPERF_API_BASE_URL", site.address)
        monkeypatch.setenv("PRISM_USER_API_TOKEN", TOKEN)
        with pytest.raises(SubmissionError, match="does not register point-11") as failed:
            register_points(checker, folder, ORGANISATION, lambda question: True)
        assert "Archive upload failed" in failed.value.cause and TOKEN not in failed.value.cause
        assert list(site.runs) == ["run-1"]  # the program has removed the other one
        site._refused = 0
        record = register_points(checker, folder, ORGANISATION, lambda question: True)
    assert sorted(record.runs) == ["point-11", "point-8"] and record.runs["point-8"].run == "run-1"


def test_points_of_another_organisation_are_not_registered(checker, site, folder):
    change_json(folder / "point-11" / "system_desc.json", lambda content: content.update(submitter_org_names="Other"))
    with pytest.raises(SubmissionError, match="point-11 is not registered for Example") as refused:
        register_points(checker, folder, ORGANISATION, never)
    assert "names Other as the submitter" in refused.value.cause and site.asked == []


def test_a_rehearsal_and_a_command_without_a_token_are_refused_by_the_plan(monkeypatch, tmp_path):
    given = {"output_dir": str(tmp_path), "register": ORGANISATION}
    with pytest.raises(UsageError, match="--register is refused for a rehearsal"):
        EndpointsJob.of(EndpointsSettings(**given))
    monkeypatch.delenv("PRISM_USER_API_TOKEN", raising=False)
    with pytest.raises(UsageError, match="needs the token") as refused:
        EndpointsJob.of(EndpointsSettings(**given, execution_mode="valid"))
    assert "PRISM_USER_API_TOKEN" in refused.value.remedy
    assert EndpointsJob.of(EndpointsSettings(output_dir=str(tmp_path))).benchmark.name == BENCHMARK.name


def test_without_a_terminal_nothing_is_begun_but_with_quiet(tmp_path):
    """Standard input of the tests is no terminal."""
    asked = EndpointsSettings(output_dir=str(tmp_path), register=ORGANISATION)
    with pytest.raises(UsageError, match="there is no terminal"):
        run_job(asked, never, "cm")
    with pytest.raises(UsageError, match="is refused for a rehearsal"):
        run_job(asked, never, "cm", quiet=True)
