"""Hosts and addresses: which mean the same on every machine, and how one may be spelled."""

import ipaddress
import re
from urllib.parse import urlsplit

#: The variables that name a proxy, and the hosts that are asked without one; programs read one spelling or the other.
PROXY_VARIABLES = tuple(
    name for kind in ("http", "https", "all", "no") for name in (f"{kind}_proxy", f"{kind}_proxy".upper())
)
_MAC = re.compile(r"[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5,19}", re.IGNORECASE)


def is_loopback(host: str) -> bool:
    """Return True if a host is a machine's name or address for itself, as localhost, 127.0.0.1 and 0.0.0.0 are."""
    address = _ip_address(host)
    if address is None:
        return host.strip("[]").lower().partition(".")[0] in ("localhost", "ip6-localhost", "ip6-loopback", "(none)")
    return address.is_loopback or address.is_unspecified


def is_address(host: str) -> bool:
    """Return True if a host is given by its IP address."""
    return _ip_address(host) is not None


def _ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None


def address_spellings(address: str) -> set[str]:
    """Return an IP or hardware address as programs and name services write it, in lower case."""
    plain = address.strip("[]").partition("%")[0].lower()
    if _MAC.fullmatch(plain):
        parts = re.split("[:-]", plain)
        bare = "".join(parts)
        return {":".join(parts), "-".join(parts), bare, ".".join(bare[at : at + 4] for at in range(0, len(bare), 4))}
    parsed = _ip_address(plain)
    if parsed is None:
        return {plain}
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
        parsed = parsed.ipv4_mapped
    if isinstance(parsed, ipaddress.IPv4Address):
        dotted, mapped = str(parsed), ipaddress.IPv6Address(f"::ffff:{parsed}")
        return {dotted, dotted.replace(".", "-"), parsed.reverse_pointer, f"::ffff:{dotted}", *_colons(mapped)}
    spelled = _colons(parsed)
    return (
        spelled | {spelling.replace(":", "-") for spelling in spelled if spelling[0] != ":"} | {parsed.reverse_pointer}
    )


def _colons(address: ipaddress.IPv6Address) -> set[str]:
    """Return the usual spellings of an IPv6 address."""
    # From Python 3.13 on, `exploded` and `compressed` write an IPv4 address in IPv6 with dots.
    groups = address.packed.hex(":", 2).split(":")
    short = [f"{int(group, 16):x}" for group in groups]
    compressed = f"::ffff:{short[6]}:{short[7]}" if address.ipv4_mapped else address.compressed
    return {compressed, ":".join(groups), ":".join(short)}


def host_of(endpoint: str) -> str:
    """Return the host that connections to a base URL go to; a zone of IPv6 as the system writes it (RFC 6874)."""
    return (urlsplit(endpoint).hostname or "").replace("%25", "%")


def host_header(endpoint: str) -> str:
    """Return the Host header for a base URL: without the zone, which has a meaning on this machine alone."""
    return re.sub(r"%25[^\]]*", "", urlsplit(endpoint).netloc.rpartition("@")[2]) or "localhost"


def without_user(url: str) -> str:
    """Return a URL without the user name and password in it."""
    return re.sub(r"(?<=//)[^/?#]*@", "", url, count=1)


def proxy_of(url: str) -> str:
    """Return the URL of the proxy that the environment names for a URL; empty without one."""
    from urllib.request import getproxies_environment, proxy_bypass  # slow, and seldom needed

    proxies = getproxies_environment()
    proxy = proxies.get(urlsplit(url).scheme) or proxies.get("all") or ""
    if not proxy or proxy_bypass(host_of(url)):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def through_proxy(url: str) -> str:
    """Return words that name the proxy of the environment for a URL, without its password; empty without one."""
    proxy = proxy_of(url)
    return f" through the proxy {without_user(proxy)} ({urlsplit(url).scheme.upper()}_PROXY)" if proxy else ""
