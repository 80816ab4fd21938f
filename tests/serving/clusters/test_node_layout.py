"""The options of each node in one server over several, and the sizes that are refused."""

import pytest

from cm4vllm.common.errors import UsageError
from cm4vllm.records.vllm.options import stored_options
from cm4vllm.serving.clusters.node_layout import node_layout


def words(nodes, rank, **sizes) -> str:
    layout = node_layout(nodes, **{"tp_size": 1, "pp_size": 1, "dp_size": 1} | sizes)
    return " ".join(layout.options(rank, "10.0.0.1", (2000, 2001)))


def test_a_tensor_group_crosses_nodes():
    assert words(2, 0, tp_size=16) == "--nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 2000"
    assert words(2, 1, tp_size=16).startswith("--headless --nnodes 2 --node-rank 1 ")
    assert node_layout(2, tp_size=16, pp_size=1, dp_size=1).workers == 8


def test_whole_engines_are_distributed():
    assert words(2, 0, dp_size=4, tp_size=4) == (
        "--data-parallel-size-local 2 --data-parallel-address 10.0.0.1 --data-parallel-rpc-port 2001"
    )
    assert words(2, 1, dp_size=4, tp_size=4) == (
        "--headless --data-parallel-size-local 2 --data-parallel-start-rank 2 "
        "--data-parallel-address 10.0.0.1 --data-parallel-rpc-port 2001"
    )


def test_every_option_is_one_of_vllm():
    for sizes in ({"tp_size": 4}, {"dp_size": 4}, {"tp_size": 2, "dp_size": 2}, {"pp_size": 4}):
        for nodes in (2, 4):
            for rank in (0, 1):
                given = {word for word in words(nodes, rank, **sizes).split() if word.startswith("--")}
                assert given <= set(stored_options())


@pytest.mark.parametrize(
    ("nodes", "sizes"), [(2, {}), (2, {"tp_size": 3}), (4, {"dp_size": 6, "tp_size": 2}), (3, {"tp_size": 8})]
)
def test_workers_that_cannot_be_distributed_are_refused(nodes, sizes):
    with pytest.raises(UsageError, match="cannot be distributed over"):
        words(nodes, 0, **sizes)


def test_a_vllm_without_the_options_is_refused_before_a_start():
    with pytest.raises(UsageError, match="--nnodes"):
        node_layout(2, tp_size=2, pp_size=1, dp_size=1, options={"--headless", "--tensor-parallel-size"})
    node_layout(2, tp_size=2, pp_size=1, dp_size=1, options=stored_options())
