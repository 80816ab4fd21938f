import pytest

from cm4vllm.hardware.size_texts import disk_size, frequency, memory_size


@pytest.mark.parametrize(
    ("size", "text"), [(25276502016, "24 GB"), (64 * 2**30, "64 GB"), (2 * 2**30, "2 GB"), (int(7.6 * 2**30), "7.6 GB")]
)
def test_memory(size, text):
    assert memory_size(size) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(256 * 2**30, "256 GiB"), (1920383410176, "1.92 TB"), (1000204886016, "1 TB"), (500107862016, "500 GB")],
)
def test_disk(size, text):
    assert disk_size(size) == text


@pytest.mark.parametrize(("mhz", "text"), [(2600.0, "2.6 GHz"), (1980.0, "1.98 GHz"), (800.0, "800 MHz"), (None, "")])
def test_frequency(mhz, text):
    assert frequency(mhz) == text
