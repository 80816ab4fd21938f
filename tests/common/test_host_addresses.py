import pytest

from cm4vllm.common.host_addresses import address_spellings, is_address, is_loopback


@pytest.mark.parametrize(
    ("host", "own", "address"),
    [
        ("localhost", True, False),
        ("LOCALHOST.localdomain", True, False),
        ("127.0.0.1", True, True),
        ("[::1]", True, True),
        ("0.0.0.0", True, True),
        ("10.1.2.3", False, True),
        ("gpu07.lab.example", False, False),
        ("fe80::1%eth0", False, True),
    ],
)
def test_which_hosts_are_every_machines_own(host, own, address):
    assert (is_loopback(host), is_address(host)) == (own, address)


@pytest.mark.parametrize(
    ("address", "spelled"),
    [
        (
            "10.1.2.3",
            (
                "10.1.2.3 10-1-2-3 3.2.1.10.in-addr.arpa ::ffff:10.1.2.3 ::ffff:a01:203 "
                "0000:0000:0000:0000:0000:ffff:0a01:0203"
            ).split(),
        ),
        ("::ffff:10.1.2.3", ["10.1.2.3"]),
        (
            "2001:DB8::5%eth0",
            ["2001:db8::5", "2001:0db8:0000:0000:0000:0000:0000:0005", "2001:db8:0:0:0:0:0:5", "2001-db8--5"],
        ),
        ("AA:bb:cc:dd:ee:0f", ["aa:bb:cc:dd:ee:0f", "aa-bb-cc-dd-ee-0f", "aabb.ccdd.ee0f", "aabbccddee0f"]),
        ("gpu07", ["gpu07"]),
    ],
)
def test_an_address_is_known_however_it_is_spelled(address, spelled):
    assert set(spelled) <= address_spellings(address)
