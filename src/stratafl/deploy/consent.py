"""What leaves a site, shown before it joins, and its owner's consent, kept in the site's folder.

Consent is to a host, by its signing key, to a federation's file, but for how patient its host is, and to what its owner
was told: another host, method, model or file is asked about again. So is a copy of the folder: you could have been sent
one with consent in it. Consent binds because the site answers that host alone (`signatures.py`), computes from its own
copy of that file, and refuses a host that has another one (`agreement.py:check_digests`).
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

from stratafl.algorithms.composition import composition, is_composition
from stratafl.algorithms.declaration import METHODS
from stratafl.algorithms.what_leaves import what_leaves
from stratafl.config.deployment import FederationFile, blueprint_of, read_federation
from stratafl.core.algorithm import Algorithm
from stratafl.core.round import Round, Setup
from stratafl.core.secure_sums import check_secure, opening_threshold
from stratafl.data.outliers import columns_differ_in_size
from stratafl.data.sample_format import SampleFormat
from stratafl.deploy.certificates import read_key
from stratafl.deploy.extending import stored_changes
from stratafl.deploy.member import FILE, own_format, site_samples
from stratafl.deploy.signing_keys import HOST_KEY, key_digests
from stratafl.deploy.status import few
from stratafl.errors import DamagedError, DeployError, WireError, counted, first_line
from stratafl.files import explained, is_stamped, json_value, read_plain, stamp, write_atomically
from stratafl.policies.accountant import in_words, rounds_allowed

CONSENT = "consent.json"
MAX_CONSENT_BYTES = 1 << 22  # bytes of that file


def since_last_consent(folder: Path, file: FederationFile) -> list[str]:
    """What the owner of a site's folder has not agreed to yet, if the host has extended the federation since."""
    changes = stored_changes(folder, file)
    return [f"new since you agreed: {'; '.join(changes)}"] if changes else []


def what_leaves_site(file: FederationFile, site: str, place: str, *, trust: bool = False) -> list[str]:
    """Lines that say what leaves this site, whose samples are at `place`."""
    format, rounds = own_format(file, place), counted(file.experiment.run.rounds, "round")
    lines = [f"takes part in at most {rounds} with {counted(len(file.deploy.sites), 'site')}: {few(file.deploy.sites)}"]
    lines.append(f"leaves this site, once: {_introduced(format)}")
    if site in file.deploy.predict:
        lines.append("leaves this site, in rounds: nothing, because it only predicts")
        return [*lines, f"its model, trained without samples of this site: {_welcomed(file)}"]
    if file.deploy.scores:
        score = "mean squared error" if format.classes is None else "accuracy"
        scored = f"the {score} of the model that it received, on its test samples (deploy.scores)"
        lines.append(f"leaves this site, every round: {scored}")
    train = replace(file.experiment.train, class_weight="none")  # weights name classes that this site may lack
    experiment = replace(file.experiment, train=train)
    blueprint = blueprint_of(experiment, format, len(file.deploy.sites), trust)
    try:
        setup = blueprint.setup()
        if file.experiment.server.secure:
            check_secure(blueprint.algorithm, setup)
        return [*lines, *what_leaves(blueprint.algorithm, setup), *_promised(blueprint.algorithm, setup)]
    except (RuntimeError, MemoryError) as error:  # sizes that no machine has
        why = f"the method of the invitation cannot be built here ({first_line(error)})"
        raise DeployError(f"{why}: ask the host for smaller settings") from error


def summed_with(file: FederationFile, keys: Mapping[str, str]) -> list[str]:
    """Under secure sums: what the host sees of uploads, and the keys of those that they are added to."""
    cohort = max(1, int(file.experiment.run.participation * len(file.deploy.sites) + 1e-9))
    least = opening_threshold(cohort)
    sums = f"of uploads the host sees only sums over at least {least} of the {counted(cohort, 'site')} of a round"
    compare = "compare these keys with the sites themselves, because a host could invent sites:"
    return [f"{sums} (server.secure)", compare, *key_digests(keys)]


def _promised(algorithm: Algorithm, setup: Setup) -> list[str]:
    """The privacy of a site at the end, if there is noise."""
    rounds = rounds_allowed(algorithm, setup)
    spent = algorithm.spent(Round(setup, rounds))
    return [in_words(spent, rounds, algorithm.promise)] if spent else []


def _welcomed(file: FederationFile) -> str:
    """What the method gives to a client that never took part; an untrained head predicts nothing of use."""
    name = file.experiment.algorithm.name
    if name in METHODS:
        return METHODS[name].new_client
    return composition(name).new_client if is_composition(name) else "what the method gives to a new client"


def data_doubts(file: FederationFile, place: str) -> list[str]:
    """Problems to expect when this site's samples meet the settings of the federation."""
    samples = site_samples(file.experiment, place)
    if samples.preprocessing.standardises or not columns_differ_in_size(samples.x):
        return []
    return ["columns differ greatly in scale, so training may fail: ask the host to set data.normalise = 'columns'"]


def _introduced(format: SampleFormat) -> str:
    """What a site says of itself before the first round (`agreement.py:Introduction`)."""
    facts = ["how many samples it trains and validates on", "shape and type of a sample"]
    if format.preprocessing.table is not None:
        facts.append(
            "of each column of its training samples the sum, the sum of squares, a histogram in bins of 0.3 % and how "
            "often each text of a category occurs, or each number if there are few different ones; of a column that "
            "is the same in all rows, its value (from all sites' sums the host makes the encoding, with means and "
            "deviations unless data.normalise = 'columns', and every site receives it)"
        )
    facts += [f"the names of its {counted(len(format.columns), 'column')}"] if format.columns else []
    if format.classes is not None:
        facts.append("that its labels are among the classes of the invitation, but not which of them")
    return ", ".join(facts)


def has_consent(folder: Path, file: FederationFile, leaves: Sequence[str], host: str) -> bool:
    """Whether the owner of this folder has agreed to just this; `host` is the line of its signing key."""
    path = folder / CONSENT
    if not path.exists() or not is_stamped(folder):
        return False
    with suppress(ValueError, DamagedError), explained("read", path):
        record = json_value(read_plain(path, MAX_CONSENT_BYTES))
        return isinstance(record, dict) and {**record, **_about(file, leaves, host)} == record
    return False


def check_consent(folder: Path) -> None:
    """Raise unless the owner of this site's folder has agreed to the file and the host in it, here."""
    path, ask = folder / CONSENT, "its owner runs 'strata join' with the host's invitation there first"
    if not path.exists() or not is_stamped(folder):
        raise WireError(f"the folder of this node is not prepared as a site: {ask}")
    file, line = read_federation(folder / FILE, plain=True), read_key(folder / HOST_KEY).decode(errors="replace")
    record = json_value(read_plain(path, MAX_CONSENT_BYTES))
    if not isinstance(record, dict) or {**record, **_about(file, record.get("leaves", []), line)} != record:
        raise WireError(f"the owner of this site has agreed to another host or federation: {ask}")


def keep_consent(folder: Path, file: FederationFile, leaves: Sequence[str], host: str) -> None:
    record = {**_about(file, leaves, host), "given": datetime.now(UTC).isoformat(timespec="seconds")}
    stamp(folder)
    write_atomically(folder / CONSENT, json.dumps(record, indent=1, ensure_ascii=False).encode())


def _about(file: FederationFile, leaves: Sequence[str], host: str) -> Mapping[str, Any]:
    tables = json.dumps(file.common().tables(), sort_keys=True).encode()
    return {"federation": blake2b(tables, digest_size=16).hexdigest(), "host": host, "leaves": list(leaves)}
