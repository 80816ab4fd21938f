"""The picture of the chain shows every dependency that a meta declares, and no other."""

import re

from chain_picture import LEFT_OUT, answering, graph, picture, rows, steps
from cm4vllm.campaign.planning.schedule import schedule
from cm4vllm.campaign.settings import CampaignSettings, Job
from recipes import recipes


def test_every_declared_dependency_is_an_arrow():
    edges = graph()
    assert "get-vllm" in edges["run-vllm-server"]
    assert edges["get-vllm"]["install-vllm"] == "maybe"
    assert not LEFT_OUT & {*edges, *(other for others in edges.values() for other in others)}
    arrows = re.findall(r"<path[^>]* d=\"M(?!0 0)", picture())
    assert len(arrows) == sum(len(others) for others in edges.values()) > 20
    drawn = {name for row in rows(edges, steps()) for name in row}
    assert {name for name, others in edges.items() if others} <= drawn


def test_every_step_of_a_schedule_is_marked_as_one():
    marked = steps()
    for step in schedule(Job.of(CampaignSettings(vllm_model_name="a/b", quantize="int8", find_target_qps=True))):
        assert set(answering(tuple(step.tags.split(",")))) <= marked, step.tags
    assert marked <= set(recipes())
