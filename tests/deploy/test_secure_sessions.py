"""Sessions of secure sums without transport: sums, drop-outs, kills, and hosts that lie."""

import hmac
import json
from dataclasses import replace
from fractions import Fraction
from hashlib import sha256
from math import comb

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from secure_sites import Sites, summed
from stratafl.core.secure_sums import opening_threshold
from stratafl.deploy.secure.group import COMPLETE, Group, Peers, neighbours, peers_of, ring_of
from stratafl.deploy.secure.masks import add_mask, derived_key, new_secret, public_key, shared_key
from stratafl.deploy.secure.secure_host import ClosedSumError
from stratafl.deploy.secure.secure_site import STEPS, SecretsOnDisk
from stratafl.deploy.secure.session import Announcement, Session, survivors_signature
from stratafl.deploy.secure.shamir import PRIME, join_shares, split_secret
from stratafl.errors import WireError

NAMES = ["ada", "bob", "cyd", "dan", "eve", "fay"]  # a sum of six is opened from five on
SIZE = 5


def session(round: int = 0, attempt: int = 1, cohort: int = len(NAMES), basis: str = "0" * 64) -> Session:
    return Session("test", round, attempt, cohort, basis)


def opened(sites: Sites, which: Session | None = None, **ways):
    which = which or session()
    return summed(sites.ask(which, **ways), which, list(sites.keys), SIZE, sites.signers)


# The primitives, by published vectors


def test_x25519_agrees_as_rfc_7748_says():
    a = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    b = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    agreed = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    assert public_key(a).hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert public_key(b).hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    assert shared_key(a, public_key(b), b"x") == shared_key(b, public_key(a), b"x") == derived_key(agreed, b"x")
    assert shared_key(a, public_key(b), b"y") != derived_key(agreed, b"x")
    with pytest.raises(WireError):
        shared_key(a, bytes(32), b"x")  # a point of small order: all would agree on zeros


def hkdf(secret: bytes, salt: bytes, info: bytes, count: int) -> bytes:
    """HKDF as the text of RFC 5869 has it."""
    key, block, out = hmac.digest(salt or bytes(32), secret, "sha256"), b"", b""
    for number in range(1, count // 32 + 2):
        block = hmac.digest(key, block + info + bytes([number]), "sha256")
        out += block
    return out[:count]


def test_keys_are_derived_as_rfc_5869_says():
    secret, salt, info = b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA))
    assert hkdf(secret, salt, info, 42).hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )
    assert derived_key(secret, b"use") == hkdf(secret, b"", b"stratafl secure sums 1 use", 32)


def test_masks_and_encryption_are_those_of_rfc_8439():
    numbers = np.zeros(16, dtype="<u8")
    add_mask(numbers, bytes(32))
    assert numbers.tobytes().hex() == (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )
    add_mask(numbers, bytes(32), subtract=True)
    assert not numbers.any()
    text = b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip "
    text += b"for the future, sunscreen would be it."
    about, nonce = bytes.fromhex("50515253c0c1c2c3c4c5c6c7"), bytes.fromhex("070000004041424344454647")
    sealed = ChaCha20Poly1305(bytes(range(0x80, 0xA0))).encrypt(nonce, text, about)
    assert sealed[:16].hex() == "d31a8d34648e60db7b86afbc53ef7ec2"
    assert sealed[-16:].hex() == "1ae10b594f09e26a7e902ecbd0600691"


def test_a_mask_is_the_same_stream_however_many_numbers_it_has():
    key, long, short = new_secret(), np.zeros(300_000, dtype="<u8"), np.zeros(200_001, dtype="<u8")
    add_mask(long, key)
    add_mask(short, key)
    assert np.array_equal(long[: len(short)], short)


def test_shares_are_points_of_a_polynomial_worked_out_by_hand():
    # 1234 + 166·x + 94·x², the example that Shamir's scheme is usually shown with
    draws = iter([166, 94])
    shares = split_secret((1234).to_bytes(32, "big"), [1, 2, 3, 4, 5, 6], 3, lambda most: next(draws))
    assert shares == {1: 1494, 2: 1942, 3: 2578, 4: 3402, 5: 4414, 6: 5614}
    assert join_shares({2: 1942, 4: 3402, 5: 4414}) == 1234
    assert join_shares({1: 1494, 2: 1942, 3: 2578, 6: 5614}) == 1234  # more than needed
    assert join_shares({2: 1942, 4: 3402}) != 1234
    assert join_shares({1: PRIME - 1, 2: PRIME - 2}) == 0  # −x, modulo the prime
    assert PRIME > 2**256
    secret = new_secret()
    assert join_shares(dict(list(split_secret(secret, range(1, 10), 7).items())[2:])) == int.from_bytes(secret, "big")


def test_the_prime_of_shares_is_prime():
    """By Miller and Rabin, for 200 bases: a number that is not prime passes with a probability of less than 4^-200."""
    assert is_prime(PRIME)
    assert [n for n in range(2**8 + 1, 2**8 + 64) if is_prime(n)] == [
        257,
        263,
        269,
        271,
        277,
        281,
        283,
        293,
        307,
        311,
        313,
        317,
    ]
    assert not any(is_prime(PRIME - n) for n in range(1, 297))  # the smallest above 2^256


def is_prime(n):
    if n % 2 == 0:
        return False
    twos = ((n - 1) & (1 - n)).bit_length() - 1

    def passes(base):
        power = pow(base, (n - 1) >> twos, n)
        return power in (1, n - 1) or any((power := power * power % n) == n - 1 for _ in range(twos - 1))

    return all(passes(base) for base in range(2, 202) if base % n)


# Sums


def random_rounds(count: int, seed: int) -> int:
    """Rounds with drop-outs at every step; each sum has the bits of the plain one. Returns how many were opened."""
    rng, sums = np.random.default_rng(seed), 0
    for t in range(count):
        names = [f"s{i}" for i in range(rng.integers(3, 8))]
        sites, which = Sites(names, SIZE, t), session(t, t + 1, len(names))
        gone = {name: rng.integers(0, 8 * len(STEPS)) for name in names}  # the step from which each is away, if any
        away = lambda step, name, gone=gone: gone[name] <= STEPS.index(step)  # noqa: E731
        try:
            done = summed(sites.ask(which, away=away), which, names, SIZE, sites.signers)
        except ClosedSumError:
            left = [name for name in names if gone[name] >= len(STEPS)]
            assert len(left) < opening_threshold(len(names))
            continue
        assert done.sites == tuple(name for name in names if gone[name] > STEPS.index("masked"))
        assert np.array_equal(done.numbers, sites.total(done.sites))
        assert len(done.sites) >= opening_threshold(len(names))
        sums += 1
    return sums


@pytest.mark.budget(2, "forty sessions of up to seven sites")
def test_sums_of_random_rounds_with_drop_outs_are_the_plain_sums():
    assert 20 < random_rounds(40, 0) < 40


def test_a_single_upload_is_noise_and_its_sum_is_not():
    """Of 100,000 masked numbers of a site that sends zeros, every bit is set as often as not, and no byte is preferred.

    The bounds are seven deviations wide: of a million such tests one might fail by chance.
    """
    sites, which = Sites(NAMES[:3], 100_000), session(cohort=3)
    for name in sites.numbers:
        sites.numbers[name][:] = 0
    done = summed(sites.ask(which), which, NAMES[:3], 100_000, sites.signers)
    assert not done.numbers.any()
    for name in NAMES[:3]:
        sent = np.frombuffer(sites.sent["masked", name][1], dtype=np.uint8)
        bits = np.unpackbits(sent.reshape(-1, 8), axis=1).mean(axis=0)
        assert np.abs(bits - 0.5).max() < 7 * 0.5 / len(done.numbers) ** 0.5
        counts = np.bincount(sent, minlength=256)
        expected = len(sent) / 256
        assert abs(((counts - expected) ** 2 / expected).sum() - 255) < 7 * (2 * 255) ** 0.5


def test_two_sites_send_the_same_numbers_under_masks_that_have_nothing_in_common():
    sites, which = Sites(NAMES[:3], 2000), session(cohort=3)
    for name in sites.numbers:
        sites.numbers[name][:] = 7
    summed(sites.ask(which), which, NAMES[:3], 2000, sites.signers)
    first = {name: sites.sent["masked", name][1] for name in sites.numbers}
    again = replace(which, round=1, attempt=2)
    summed(sites.ask(again), again, NAMES[:3], 2000, sites.signers)
    words = [
        set(np.frombuffer(data, "<u8").tolist())
        for data in (*first.values(), *(sites.sent["masked", n][1] for n in first))
    ]
    assert len(set.union(*words)) == sum(map(len, words)) == 6 * 2000


# Sites that vanish


@pytest.mark.parametrize("step", STEPS)
def test_one_site_of_six_may_vanish_at_any_step(step):
    sites = Sites(NAMES, SIZE)
    done = opened(sites, away=lambda at, name: name == "cyd" and STEPS.index(at) >= STEPS.index(step))
    late = STEPS.index(step) > STEPS.index("masked")
    assert done.sites == tuple(name for name in NAMES if late or name != "cyd")
    assert np.array_equal(done.numbers, sites.total(done.sites))


@pytest.mark.parametrize("step", STEPS)
def test_with_two_of_six_gone_the_sum_stays_closed(step):
    sites = Sites(NAMES, SIZE)
    with pytest.raises(ClosedSumError, match="4"):
        opened(sites, away=lambda at, name: name in ("cyd", "dan") and STEPS.index(at) >= STEPS.index(step))


def test_a_site_that_gives_a_wrong_share_keeps_the_sum_closed_instead_of_spoiling_it():
    sites = Sites(NAMES[:3], SIZE)
    which = session(cohort=3)
    ask = sites.ask(which)

    def spoiling(step, messages):
        answers = ask(step, messages)
        if step == "open":
            answers["ada"][0]["seeds"]["bob"] = "00" * 33
        return answers

    with pytest.raises(ClosedSumError, match="bob"):
        summed(spoiling, which, NAMES[:3], SIZE, sites.signers)


def test_the_secrets_of_a_session_survive_a_kill_and_end_when_the_site_gives_shares(tmp_path):
    sites = Sites(NAMES[:3], SIZE)
    folder = tmp_path / "site"
    folder.mkdir(mode=0o700)
    sites.files["ada"] = SecretsOnDisk(folder / "secrets.json")
    done = opened(sites, session(cohort=3))  # a new SecureSite for each message
    assert np.array_equal(done.numbers, sites.total(NAMES[:3]))
    kept = json.loads((folder / "secrets.json").read_bytes())
    assert (kept["opened"], kept["seed"], kept["mask_secret"], kept["share_secret"], kept["dealt"]) == (
        0,
        *[""] * 3,
        {},
    )
    assert all(len([part for part in parts if part]) == 1 for parts in kept["received"].values())
    assert len(kept["own_shares"]) == 1
    sites.site("ada").forget()
    kept = json.loads((folder / "secrets.json").read_bytes())
    assert (kept["opened"], kept["seed"], kept["mask_secret"], kept["received"]) == (0, "", "", {})
    for attempt in (1, 9):
        with pytest.raises(WireError):
            step(sites, "ada", "keys", {}, session(attempt=attempt, cohort=3))


def test_a_site_whose_numbers_have_changed_masks_them_no_second_time():
    """The difference of two answers under the same masks is the difference of the numbers."""
    host = Host("masked")
    assert host.say("ada", "masked", host.sealed("ada")) == host.say("ada", "masked", host.sealed("ada"))
    host.sites.numbers["ada"] = host.sites.numbers["ada"] + np.uint64(1)
    host.refused("ada", "masked", host.sealed("ada"))


def test_a_session_that_was_forgotten_before_it_was_opened_is_not_begun_again():
    host = Host("masked")
    host.sites.site("ada").forget()
    for what, table in (("keys", {}), ("shares", host.members()), ("masked", host.sealed("ada"))):
        host.refused("ada", what, table)
    host.say("ada", "keys", {}, session(0, 2))


# Hosts that lie. Twelve ways, and the tests of each:
#
#     names two lists of survivors            …two_sets_of_survivors_to_one_site…, …to_different_sites…
#     repeats a round, wants a second sum     …replays_a_round…, and a session that was forgotten
#     swaps keys, or uses an old session's    …swaps_the_keys…, …keys_of_another_session…
#     cuts the ring of more than 50 sites     …cuts_the_ring…
#     sends sites different models            …different_models…, and what a site compares: test_secure_keys.py
#     invents a site                          …invents_a_site…; names another cohort: test_secure_keys.py
#     counts a site twice, names too few      …counts_a_site_twice…, …fewer_than_three_sites…
#     wants both secrets of a site            …wants_both_secrets…
#     forges confirmations, or has too few    …without_enough_confirmations…
#     changes shares, or gives others' ones   …changes_shares…
#     skips a step, leaves a site out         …skips_a_step…
#     has numbers masked that have changed    …whose_numbers_have_changed…


def step(sites: Sites, name: str, what: str, table, which: Session | None = None):
    return sites.site(name).answer(which or session(), what, table, lambda: sites.numbers[name])


class Host:
    """A host that has been honest up to a step; what it says next is up to a test."""

    def __init__(self, last: str, which: Session | None = None, sites: Sites | None = None) -> None:
        self.sites, self.which = sites or Sites(NAMES, SIZE), which or session()
        self.answers: dict[str, dict[str, dict]] = {}
        tables = {"keys": lambda name: {}, "shares": self.members, "masked": self.sealed, "confirm": self.survivors}
        tables["open"] = self.confirmations
        for what in STEPS[: STEPS.index(last) + 1]:
            self.answers[what] = {name: self.say(name, what, tables[what](name))[0] for name in NAMES}

    def say(self, name, what, table, which=None):
        return step(self.sites, name, what, table, which or self.which)

    def members(self, name=""):
        return {"members": [self.answers["keys"][each]["announcement"] for each in NAMES]}

    def sealed(self, name):
        return {"senders": NAMES, "shares": {o: self.answers["shares"][o]["shares"][name] for o in NAMES if o != name}}

    def survivors(self, name="", names=NAMES):
        return {"survivors": list(names)}

    def confirmations(self, name=""):
        return {"confirmations": {each: self.answers["confirm"][each]["signature"] for each in NAMES}}

    def refused(self, name, what, table, says=".", which=None):
        """The step is refused, and what the site kept is what it was."""
        before = self.sites.files[name].data
        with pytest.raises(WireError, match=says):
            self.say(name, what, table, which)
        assert self.sites.files[name].data == before


def test_a_host_that_names_two_sets_of_survivors_to_one_site_is_refused():
    host = Host("confirm")
    host.refused("ada", "confirm", host.survivors(names=NAMES[:5]))
    host.say("ada", "confirm", host.survivors())  # the first set again is no lie


def test_a_host_that_names_two_sets_of_survivors_to_different_sites_learns_nothing():
    host = Host("masked")
    told = {name: NAMES[:5] if name in NAMES[:3] else NAMES for name in NAMES[:5]}
    signed = {
        name: host.say(name, "confirm", host.survivors(names=names))[0]["signature"] for name, names in told.items()
    }
    for name in told:
        host.refused(name, "open", {"confirmations": signed})  # by others, for other survivors
        alike = {other: signature for other, signature in signed.items() if told[other] == told[name]}
        host.refused(name, "open", {"confirmations": alike}, says=str(len(alike)))


def test_a_host_that_replays_a_round_or_asks_for_a_second_sum_of_it_is_refused():
    host = Host("open")
    assert host.say("ada", "open", host.confirmations())[0] == host.answers["open"]["ada"]  # its reply was lost
    host.refused("ada", "keys", {}, which=session(0, 2))  # another attempt
    later = Host("keys", session(1, 3), host.sites)
    later.refused("ada", "keys", {}, which=session(0, 4))
    later.refused("ada", "keys", {}, which=session(1, 2))
    later.refused("ada", "open", host.confirmations(), which=session(0, 1))


def test_a_host_that_swaps_the_keys_of_a_site_is_refused_by_all():
    host = Host("keys")
    own = {name: Announcement.from_table(host.answers["keys"][name]["announcement"]) for name in NAMES}
    bobs = replace(own["bob"], mask_key=public_key(new_secret()))
    forged = [bobs.signed(host.which, Ed25519PrivateKey.generate()), bobs, replace(own["bob"], commitment=bytes(32))]
    for other in forged:
        members = [each if name != "bob" else other for name, each in own.items()]
        for name in NAMES:
            host.refused(name, "shares", {"members": [each.to_table() for each in members]})


def test_a_host_that_uses_keys_of_another_session_is_refused():
    host = Host("keys")
    again = Host("keys", session(0, 2), host.sites)
    members = again.members()["members"]
    members[1] = host.answers["keys"]["bob"]["announcement"]  # signed by bob, for the first attempt
    again.refused("ada", "shares", {"members": members}, "bob")


def test_a_host_that_sends_sites_different_models_gets_no_keys_that_others_take():
    """Each site speaks of the model that it was sent alone, so what it signs is for another session than others'."""
    host, other = Host("keys"), session(basis="1" * 64)
    sites = Sites(NAMES, SIZE)
    sites.keys, sites.signers = host.sites.keys, host.sites.signers
    apart = Host("keys", other, sites)
    members = [*host.members()["members"][:1], *apart.members()["members"][1:]]
    host.refused("ada", "shares", {"members": members}, "bob")
    apart.refused("bob", "shares", {"members": members}, "ada")


def test_a_host_that_invents_a_site_is_refused():
    host = Host("keys")
    liar = Ed25519PrivateKey.generate()
    zoe = Announcement("zoe", *(public_key(new_secret()) for _ in range(2)), bytes(32), b"").signed(host.which, liar)
    host.refused("ada", "shares", {"members": [*host.members()["members"][:5], zoe.to_table()]}, "zoe")


def test_a_host_that_counts_a_site_twice_or_names_too_few_is_refused():
    host = Host("keys")
    members = host.members()["members"]
    host.refused("ada", "shares", {"members": [members[0], *members[:5]]})
    host.refused("ada", "shares", {"members": members[:4]}, "4")
    own = Host("shares")
    few = {"senders": NAMES[:4], "shares": {o: own.answers["shares"][o]["shares"]["ada"] for o in NAMES[1:4]}}
    own.refused("ada", "masked", few, "4")
    own = Host("masked")
    own.refused("ada", "confirm", own.survivors(names=NAMES[:4]), "4")


def test_sums_of_fewer_than_three_sites_are_refused_whatever_the_cohort():
    sites, which = Sites(NAMES[:2], SIZE), session(cohort=2)
    with pytest.raises(ClosedSumError):
        summed(sites.ask(which), which, NAMES[:2], SIZE, sites.signers)
    members = [step(sites, name, "keys", {}, which)[0]["announcement"] for name in NAMES[:2]]
    with pytest.raises(WireError, match="3"):
        step(sites, "ada", "shares", {"members": members}, which)


def test_a_host_that_wants_both_secrets_of_a_site_gets_one():
    host = Host("open")
    for name in NAMES:
        given = host.answers["open"][name]
        assert not set(given["seeds"]) & set(given["secrets"])
        assert set(given["seeds"]) | set(given["secrets"]) == set(NAMES)
    host.refused("ada", "confirm", host.survivors(names=NAMES[:5]))  # so that the mask secret of fay would follow
    host.refused("ada", "masked", {**host.sealed("ada"), "senders": NAMES[:5]})
    lost = Host("masked")
    five = {name: lost.say(name, "confirm", lost.survivors(names=NAMES[:5]))[0]["signature"] for name in NAMES[:5]}
    given = lost.say("ada", "open", {"confirmations": five})[0]
    assert (set(given["seeds"]), set(given["secrets"])) == (set(NAMES[:5]), {"fay"})


def test_a_host_without_enough_confirmations_or_with_forged_ones_is_refused():
    host = Host("confirm")
    signed = host.confirmations()["confirmations"]
    host.refused("ada", "open", {"confirmations": dict(list(signed.items())[:4])}, "4")
    host.refused("ada", "open", {"confirmations": {**signed, "bob": "00" * 64}}, "bob")
    host.refused("ada", "open", {"confirmations": {**signed, "zoe": signed["bob"]}}, "zoe")
    other = survivors_signature(session(0, 7), bytes(32), NAMES, "bob", host.sites.keys["bob"]).hex()
    host.refused("ada", "open", {"confirmations": {**signed, "bob": other}}, "bob")


def test_a_host_that_changes_shares_or_gives_those_of_another_site_is_refused():
    host = Host("shares")
    good = host.sealed("ada")
    turned = bytes.fromhex(good["shares"]["bob"])
    changed = bytes([turned[0] ^ 1]) + turned[1:]
    host.refused("ada", "masked", {**good, "shares": {**good["shares"], "bob": changed.hex()}})
    host.refused("ada", "masked", {**good, "shares": {**good["shares"], "bob": good["shares"]["cyd"]}})
    host.refused("ada", "masked", {**good, "shares": {**good["shares"], "bob": host.sealed("cyd")["shares"]["bob"]}})
    host.refused("ada", "masked", {**good, "shares": {o: each for o, each in good["shares"].items() if o != "bob"}})


def test_a_host_that_skips_a_step_or_leaves_a_site_out_of_its_own_sum_is_refused():
    Host("keys").refused("ada", "masked", {"senders": NAMES, "shares": {}}, "masked")
    host = Host("shares")
    host.refused("ada", "confirm", host.survivors(), "confirm")
    host = Host("masked")
    host.refused("ada", "open", {"confirmations": {}}, "open")
    host.refused("ada", "confirm", host.survivors(names=NAMES[1:]))
    host.refused("ada", "confirm", {"survivors": [*NAMES, "zoe"]})
    host.refused("ada", "sum", {}, "sum")


@pytest.mark.parametrize(
    "wrong", [None, 1, "ada", {}, [1, 2], ["b", "a"], [["ada"]], [[1, "", "", "", ""]], [["ada", "x", "", "", ""]]]
)
def test_what_is_no_message_is_refused_and_not_kept(wrong):
    keys, shares, masked, confirm = (Host(last) for last in STEPS[:4])
    keys.refused("ada", "shares", {"members": wrong})
    shares.refused("ada", "masked", {"senders": wrong, "shares": {}})
    shares.refused("ada", "masked", {"senders": NAMES, "shares": wrong})
    masked.refused("ada", "confirm", {"survivors": wrong})
    confirm.refused("ada", "open", {"confirmations": wrong})


def test_a_site_that_answers_nonsense_is_left_out_by_the_host():
    sites = Sites(NAMES, SIZE)
    ask = sites.ask(session())

    def answering(what, messages):
        answers = ask(what, messages)
        if what in ("keys", "masked"):
            answers["cyd"] = ({"announcement": ["cyd", 3]}, b"123")
        return {name: each for name, each in answers.items() if name in messages}

    assert summed(answering, session(), NAMES, SIZE, sites.signers).sites == tuple(n for n in NAMES if n != "cyd")


# Many sites


def test_above_fifty_sites_peers_are_a_ring_of_the_stated_safety():
    assert peers_of(COMPLETE, COMPLETE) == Peers(49, 34)
    for count, seed in ((100, b"a"), (301, b"b")):
        names = [f"s{i:03d}" for i in range(count)]
        peers = peers_of(count, count)
        ring = {name: set(neighbours(names, name, peers.count, seed)) for name in names}
        assert all(len(each) == peers.count < count - 1 for each in ring.values())
        assert all(name in ring[other] for name, each in ring.items() for other in each)
        assert ring != {name: set(neighbours(names, name, peers.count, b"other")) for name in names}
        # A fifth of the sites, drawn at random, are too few of any site's peers to join a secret of it.
        order = sorted(names, key=lambda name: sha256(name.encode()).digest())
        corrupt = set(order[: count // 5])
        assert all(len(each & corrupt) < peers.threshold for each in ring.values())


def test_a_host_that_cuts_the_ring_in_two_parts_is_refused_and_chance_does_not_cut_it():
    """Were two stretches of k/2 sites gone, masks would cancel in each of the two parts between them."""
    count = 300
    names, which = [f"s{i:03d}" for i in range(count)], session(cohort=count)
    group = Group(which, [Announcement(name, *([bytes(32)] * 3), b"") for name in names])
    peers, ring = peers_of(count, count), ring_of(names, group.digest)
    assert set(group.peers(ring[0])) == {*ring[1 : peers.count // 2 + 1], *ring[-(peers.count // 2) :]}
    away = peers.count // 2 - peers.least + 1  # all but as many as could work for the host
    cut = {*ring[5 : 5 + away], *ring[count // 2 : count // 2 + away]}
    assert len(names) - len(cut) >= which.least  # which is not noticed by the number of those who are left
    with pytest.raises(WireError, match=str(peers.least)):
        group.check_part([name for name in names if name not in cut], ring[0], names)
    for seed in range(20):
        gone = set(np.random.default_rng(seed).choice(names, count // 5, replace=False).tolist()) - {ring[0]}
        group.check_part([name for name in names if name not in gone], ring[0], names)


@pytest.mark.parametrize(
    ("cohort", "sites", "k", "threshold", "least"), [(300, 300, 146, 74, 40), (150, 130, 114, 58, 31)]
)
def test_the_size_of_the_ring_is_that_of_its_probabilities(cohort, sites, k, threshold, least):
    """Hypergeometric tails, summed up by hand with fractions. All of the fifth that work for the host are there."""
    marked = cohort // 5
    assert peers_of(sites, cohort) == Peers(k, threshold, least)

    def tail(others, drawn, n):
        ways = [comb(marked, i) * comb(others - marked, drawn - i) for i in range(n, drawn + 1)]
        return Fraction(sum(ways), comb(others, drawn)) * sites

    assert tail(sites - 1, k, threshold) <= Fraction(1, 2**40)
    assert tail(sites - 1, k, k - threshold + 1) <= Fraction(1, 2**20)  # a site that vanished has no share left
    assert tail(sites, k // 2, least) <= Fraction(1, 2**40) < tail(sites, k // 2, least - 1)
    assert tail(sites, k // 2, k // 2 - least + 1) <= Fraction(1, 2**20)


@pytest.mark.slow
@pytest.mark.budget(60, "a session of a hundred sites")
def test_a_hundred_sites_sum_over_a_ring_and_may_lose_a_tenth():
    names = [f"s{i:03d}" for i in range(100)]
    sites, which = Sites(names, SIZE), session(cohort=100)
    away = lambda at, name: name.endswith("7") and at in STEPS[2:]  # noqa: E731
    done = summed(sites.ask(which, away=away), which, names, SIZE, sites.signers)
    assert done.sites == tuple(name for name in names if not name.endswith("7"))
    assert np.array_equal(done.numbers, sites.total(done.sites))


@pytest.mark.nightly
@pytest.mark.budget(120, "a thousand sessions")
def test_a_thousand_random_rounds():
    assert 400 < random_rounds(1000, 1) < 1000
