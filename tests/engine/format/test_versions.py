import pytest

from cm4vllm.engine.format.versions import Wanted, version_key


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("1.9", "1.10"),
        ("1.0", "1.0.1"),
        ("1.0rc1", "1.0"),
        ("1.0a", "1.0b"),
        ("2.13.0", "10"),
        ("1.0", "1.0.post1"),
        ("1.0.post1", "1.0.1"),
        ("1.0.0rc1", "1.0"),
        ("9" * 5000, "1" + "0" * 5000),
        ("1." + "9" * 5000, "2"),
        ("1.9", "1." + "8" * 5000),
    ],
)
def test_order(older, newer):
    assert version_key(older) < version_key(newer)


@pytest.mark.parametrize(
    ("version", "same"),
    [
        ("1.0", "1.0.0"),
        ("1." + "0" * 5000, "1"),
        ("1.007", "1.7"),
        ("1", "1.0"),
        ("2.13.0", "2.13.0+cpu"),
        ("v6.1", "v6.1"),
    ],
)
def test_equal(version, same):
    assert version_key(version) == version_key(same)


def test_limits():
    assert Wanted(minimum="1", maximum="2").accepts("1.5")
    assert not Wanted(minimum="1", maximum="2").accepts("2.1")
    assert not Wanted(version="1.5").accepts("1.6")
    assert Wanted().accepts("anything")


def test_default_is_moved_into_the_limits():
    assert Wanted(minimum="2").with_default("1").version == "2"
    assert Wanted(maximum="2", max_usable="1.9").with_default("3").version == "1.9"
    assert Wanted(version="5").with_default("3").version == "5"
