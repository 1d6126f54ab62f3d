"""A federation whose samples are a coded table, encoded: fitted on its training samples, from sums of its clients."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from stratafl.data.federation import Federation
from stratafl.data.preprocessing import Standardisation
from stratafl.data.tables.column_sums import added, table_sums
from stratafl.data.tables.kinds import Codes
from stratafl.data.tables.table_encoding import TableEncoding


def encoded(federation: Federation, what: Sequence[str], new_clients: int = 0) -> Federation:
    """The federation with the inputs of a model; `what` says how columns are standardised, as for `standardised`.

    Clients that never train, the last `new_clients`, have no part in the encoding.
    """
    whole = federation.apart() if "client" in what else federation
    codes, train = whole.x.numpy(), whole.splits["train"]
    columns = [column for column in federation.codes if column.is_coded]
    training = range(whole.clients - new_clients)
    sums = added([table_sums(columns, codes[train.of(client).numpy()]) for client in training])
    table = TableEncoding.fitted(columns, sums)
    recoded = table.recoded(columns, codes)
    done = replace(
        whole,
        x=table.applied(torch.from_numpy(recoded)),
        column_names=table.inputs,
        table=table,
        codes=(),
        raw=torch.float64,
    )
    if "client" in what:
        return _by_client(done, table, recoded)
    if "x" not in what:
        return done
    standardisation = Standardisation(*table.moments(sums))
    return replace(done, columns=standardisation, x=standardisation.applied(done.x, done.x.dtype))


def _by_client(federation: Federation, table: TableEncoding, codes: Codes) -> Federation:
    x, columns = federation.x.clone(), list[Standardisation]()
    for client in range(federation.clients):
        rows = {split: ragged.of(client) for split, ragged in federation.splits.items()}
        every = torch.cat(list(rows.values()))
        seen = rows["train"] if len(rows["train"]) else every
        columns.append(Standardisation(*table.own_moments(codes[seen.numpy()])))
        x[every] = columns[-1].applied(federation.x[every], x.dtype)
    return replace(federation, x=x, client_columns=tuple(columns))
