"""Rules of MLPerf Endpoints that are renewed from files: of the official checker, or of `get,mlperf,rules`."""

import os

import pytest
import yaml
from msgspec.structs import replace

from cm4vllm.common.errors import UsageError
from cm4vllm.common.files import json_text, write_text
from cm4vllm.rules import endpoints_rules
from cm4vllm.rules.renewal import plain_rules, read_rules, rules_digest, with_drafters, with_seed_sets

pytestmark = pytest.mark.usefixtures("any_day")

SEEDS = {"scheduler_rng_seed": 2**64 - 1, "sample_index_rng_seed": 7, "model_seed": 9}
PUBLISHED = {"cohort": {"version": 1.0, "cohort-id": "2026-12-C1", "seed_sets": [{"id": "B", **SEEDS}]}}
LISTED = {"seed_sets": [{"id": "B", **SEEDS, "cohorts": ["2026-12-C1", "2027-01-C0"]}]}


def file_of(folder, document):
    path = folder / "given.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize(("document", "cohorts"), [(PUBLISHED, 4), (LISTED, 2)])
def test_seed_sets_of_the_official_checkers_forms_are_added_to_those_known(tmp_path, document, cohorts):
    path = file_of(tmp_path, document)
    older, newer = with_seed_sets(endpoints_rules(), path).seed_sets
    assert older == endpoints_rules().seed_sets[0]
    assert (newer.name, newer.scheduler, newer.sample_index, newer.model) == ("B", 2**64 - 1, 7, 9)
    assert (newer.cohort, newer.cohorts) == ("2026-12-C1", cohorts)
    assert newer.source.startswith("given.yaml, SHA-256 ")
    assert with_seed_sets(endpoints_rules(), path).title.endswith("rules of 2026-10-16 with given.yaml")


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"seed_sets": [{"id": "B", **SEEDS}]}, "has no cohort"),
        ({"seed_sets": []}, "has no seed sets"),
        ({"seed_sets": [{"id": "B", **SEEDS, "cohorts": ["2026-12-C1"], "model_seed": 2**64}]}, "beyond 64 bits"),
        ({"seed_sets": [{"id": "B", **SEEDS, "model_seed": -1}]}, "model_seed"),
        ({"seed_sets": [{"id": "B", **SEEDS, "cohorts": ["2026-12-C1", "2027-02-C0"]}]}, "do not follow each other"),
        ({"seed_sets": [{"id": "B", **SEEDS, "model_seed": "x"}]}, "model_seed"),
        ({"cohort": {"cohort-id": "soon", "seed_sets": [{"id": "B", **SEEDS}]}}, "is no cohort"),
        ([], "Expected `object`"),
    ],
)
def test_seed_sets_whose_cohorts_or_seeds_are_not_known_are_refused(tmp_path, document, words):
    with pytest.raises(UsageError) as refused:
        with_seed_sets(endpoints_rules(), file_of(tmp_path, document))
    assert words in str(refused.value)


def test_approved_drafters_replace_those_known(tmp_path):
    entry = {"benchmark": "llama3_1-8b", "approved_cohort": "2026-12-C0", "model_id": "acme/eagle"}
    path = file_of(tmp_path, {"drafters": [{**entry, "weight_checksum": "sha256:12"}]})
    (drafter,) = with_drafters(endpoints_rules(), path).drafters
    assert (drafter.benchmark, drafter.cohort, drafter.weights) == ("llama3_1-8b", "2026-12-C0", "sha256:12")


def test_rules_are_read_as_they_were_written_and_their_digest_is_of_what_they_say(tmp_path):
    rules = with_seed_sets(endpoints_rules(), file_of(tmp_path, PUBLISHED))
    path = tmp_path / "rules.json"
    write_text(path, json_text(plain_rules(rules)))
    assert read_rules(path) == rules
    assert rules_digest(rules) == rules_digest(read_rules(path)) != rules_digest(endpoints_rules())
    with pytest.raises(UsageError, match="cannot read the rules of MLPerf Endpoints"):
        read_rules(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("calendar", "weeks"), [1, 6], "calendar.weeks"),
        (("calendar", "weekday"), 9, "calendar.weekday"),
        (("calendar", "business_days"), 10**9, "calendar.business_days"),
        (("calendar", "weeks"), [3, 1], "is not before the second"),
        (("dated",), "x/../../out", "dated"),
        (("benchmarks", 0, "performance", "path"), "/etc/passwd", "outside of the client's folder"),
        (("benchmarks", 0, "performance", "cached"), "../x", "outside of the client's folder"),
        (("benchmarks", 0, "temperature"), float("nan"), "temperature"),
        (("curve", "most_points"), 10**7, "curve.most_points"),
        (("seed_sets", 0, "cohorts"), 10**9, "cohorts"),
        (("seed_sets",), [], "seed_sets"),
        (("seed_sets", 0, "cohort"), "soon", "is no cohort"),
        (("seed_sets", 0, "scheduler"), 2**64, "beyond 64 bits"),
        (("durations",), [], "durations"),
        (("durations", 1, "up_to"), 64, "none holds for a higher concurrency"),
        (("durations", 0, "seconds"), float("nan"), "durations"),
        (("curve", "lowest_c_max"), 3, "the bounds of a curve leave none"),
        (("client", "commits"), ["HEAD; rm -rf ~"], "client.commits"),
        (("window", "gating"), ["tps"], "window.gating"),
        (("benchmarks",), [], "no benchmark can be run"),
        (("benchmarks", 0, "samples"), 0, "has no samples"),
        (("inference_checkers", 0, "commit"), "main", "inference_checkers"),
    ],
)
def test_rules_that_nobody_can_follow_are_refused(tmp_path, place, value, words):
    document = plain_rules(endpoints_rules())
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(UsageError) as refused:
        read_rules(file_of(tmp_path, document))
    assert words in str(refused.value)


def test_a_file_of_json_is_read_as_it_was_written(tmp_path):
    shipped = endpoints_rules()
    odd = replace(shipped, window=replace(shipped.window, alpha=1e-5, source="\N{GRINNING FACE}"))
    write_text(tmp_path / "rules.json", json_text(plain_rules(odd)))
    assert read_rules(tmp_path / "rules.json") == odd


def test_drafters_that_are_no_file_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("none.yaml", "pipe", "."):
        with pytest.raises(UsageError):
            with_drafters(endpoints_rules(), tmp_path / name)
