"""Which requests the gate lets through, decided on their heads alone."""

from base64 import b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs pip install 'stratafl[flower]'")

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from stratafl.deploy.admission import FORWARDED, MAX_BODY_BYTES, PATHS, KeyRing, Quota, RefusedError, admit
from stratafl.deploy.certificates import Pair, create_site_key, read_public_key

PULL = "/v1/fleet/pull-messages"


@pytest.fixture
def site(tmp_path: Path) -> Pair:
    (tmp_path / "sites").mkdir()
    return create_site_key(tmp_path / "sites", "north")


def signed(site: Pair, age: float = 0.0, length: object = 5) -> dict[str, str]:
    """The headers of a site, from scratch: what the documents of flwr 1.41 and its source say."""
    key = load_ssh_private_key(site.key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    stamp = (datetime.now(UTC) - timedelta(seconds=age)).isoformat()
    return {
        "flwr-public-key": b64encode(read_public_key(site.public)).decode(),
        "flwr-timestamp": stamp,
        "flwr-signature": b64encode(key.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))).decode(),
        "content-length": str(length),
    }


def refusal(site: Pair, headers: dict[str, str], method: str = "POST", target: str = PULL) -> RefusedError:
    with pytest.raises(RefusedError) as raised:
        admit(method, target, headers.items(), KeyRing(site.public.parent))
    return raised.value


def test_a_registered_site_passes(site: Pair) -> None:
    assert admit("POST", PULL, signed(site).items(), KeyRing(site.public.parent)) == ("north", 5)


@pytest.mark.budget(0.8, "imports the SuperLink")
def test_of_all_paths_of_the_superlink_only_those_of_a_fleet_pass(site: Pair) -> None:
    from flwr.superlink.main import create_app

    routes = {route.path for route in create_app().routes if hasattr(route, "path")}
    paths = {path for found in create_app().openapi()["paths"] for path in [found]} | routes
    assert len(paths) > 50
    assert paths > PATHS
    ring = KeyRing(site.public.parent)
    passed, refused = set(), set()
    for path in sorted(paths):
        try:
            admit("POST", path, signed(site).items(), ring)
            passed.add(path)
        except RefusedError as error:
            refused.add(error.status)
    assert passed == PATHS
    assert refused == {404}
    fleet = {path for path in paths if path.startswith("/v1/fleet/")}
    others = {"register-node", "unregister-node", "get-run", "get-fab"}  # the host registers; a site takes no code
    assert fleet - passed == {f"/v1/fleet/{name}" for name in others}


@pytest.mark.parametrize(
    "target",
    [
        *(
            f"{PULL}/",
            f"{PULL}?x=1",
            f"/{PULL}",
            "/v1/fleet/../control/start-run",
            "/v1/fleet/%2e%2e/control/start-run",
        ),
        *("http://superlink/v1/control/start-run", "*", "", "/V1/FLEET/PULL-MESSAGES"),
    ],
)
def test_a_path_passes_only_letter_by_letter(site: Pair, target: str) -> None:
    assert refusal(site, signed(site), target=target).status == 404


@pytest.mark.parametrize("method", ["GET", "HEAD", "CONNECT", "post"])
def test_only_post_passes(site: Pair, method: str) -> None:
    assert refusal(site, signed(site), method=method).status == 405


@pytest.mark.parametrize("length", ["", "-1", "+5", "5 ", "0x5", "5, 5", "٣", "1" * 30])
def test_the_length_of_a_body_is_a_number(site: Pair, length: str) -> None:
    assert refusal(site, signed(site, length=length)).status == 411


def test_a_long_body_is_refused_before_it_is_read(site: Pair) -> None:
    assert (
        admit("POST", PULL, signed(site, length=MAX_BODY_BYTES).items(), KeyRing(site.public.parent))[1]
        == MAX_BODY_BYTES
    )
    assert refusal(site, signed(site, length=MAX_BODY_BYTES + 1)).status == 413


@pytest.mark.parametrize("header", ["transfer-encoding", "upgrade", "expect"])
def test_other_ways_to_send_a_body_are_refused(site: Pair, header: str) -> None:
    assert refusal(site, {**signed(site), header: "chunked"}).status == 400


def test_a_header_that_comes_twice_is_refused(site: Pair) -> None:
    fields = [*signed(site).items(), ("flwr-public-key", "another")]
    with pytest.raises(RefusedError, match="two headers"):
        admit("POST", PULL, fields, KeyRing(site.public.parent))


@pytest.mark.parametrize("missing", ["flwr-public-key", "flwr-timestamp", "flwr-signature"])
def test_a_request_without_signature_is_refused(site: Pair, missing: str) -> None:
    headers = signed(site)
    del headers[missing]
    assert refusal(site, headers).status == 401
    assert refusal(site, {**signed(site), missing: "not base64, no time"}).status == 401


def test_a_time_without_zone_is_refused(site: Pair) -> None:
    stamp = datetime.now().isoformat()
    assert refusal(site, {**signed(site), "flwr-timestamp": stamp}).status == 401


def test_a_key_that_is_not_registered_is_refused(site: Pair, tmp_path: Path) -> None:
    stranger = create_site_key(tmp_path, "north")  # the same name does not help
    assert "not registered" in refusal(site, signed(stranger)).reason


def test_a_signature_by_another_key_is_refused(site: Pair, tmp_path: Path) -> None:
    stranger = signed(create_site_key(tmp_path, "south"))
    forged = {
        **signed(site),
        "flwr-signature": stranger["flwr-signature"],
        "flwr-timestamp": stranger["flwr-timestamp"],
    }
    found = refusal(site, forged)
    assert (found.status, "'north'" in found.reason) == (401, True)


@pytest.mark.parametrize(("age", "told"), [(400.0, "400 s behind"), (-60.0, "60 s ahead")])
def test_a_clock_that_is_off_is_refused_and_said(site: Pair, age: float, told: str) -> None:
    found = refusal(site, signed(site, age))
    assert (found.status, told in found.reason) == (401, True)


def test_keys_that_are_added_or_removed_count_at_once(site: Pair) -> None:
    ring = KeyRing(site.public.parent)
    south = create_site_key(site.public.parent, "south")
    assert admit("POST", PULL, signed(south).items(), ring)[0] == "south"
    headers = signed(site)
    site.public.unlink()
    with pytest.raises(RefusedError):
        admit("POST", PULL, headers.items(), ring)


def test_keys_that_cannot_be_read_let_nobody_in(site: Pair) -> None:
    ring = KeyRing(site.public.parent)
    (site.public.parent / "broken.pub").write_text("no key")
    with pytest.raises(RefusedError) as raised:
        admit("POST", PULL, signed(site).items(), ring)
    assert raised.value.status == 503  # a site asks again


def test_headers_that_proxies_set_are_not_passed_on() -> None:
    assert FORWARDED.fullmatch(b"flwr-public-key")
    assert FORWARDED.fullmatch(b"content-type")
    for name in (
        b"x-forwarded-for",
        b"authorization",
        b"host",
        b"forwarded",
        b"cookie",
        b"content-length",
        b"connection",
    ):
        assert not FORWARDED.fullmatch(name)


def test_a_quota_is_of_each_site_and_begins_anew_when_its_seconds_have_passed() -> None:
    clock = [5.0]
    quota = Quota(most=100, seconds=60, now=lambda: clock[0])
    quota.take("north", 100)
    quota.take("south", 60)
    quota.take("south", 40)
    with pytest.raises(RefusedError) as found:
        quota.take("north", 1)
    assert (found.value.status, "'north'" in found.value.reason) == (503, True)
    clock[0] = 65.0
    quota.take("north", 100)
    clock[0] = 124.0
    with pytest.raises(RefusedError):
        quota.take("north", 1)
