"""ONNX models of tables: one named input for each column, instead of one matrix of codes.

Numbers are floats [batch], NaN where one is missing; dates are days since 1970. Categories and booleans are strings
[batch], looked up by LabelEncoder of ai.onnx.ml: an empty string is missing, an unknown one is the place for others.
"""

import importlib
import json
from pathlib import Path
from typing import Any

from stratafl.data.formats.cells import MISSING, NO, YES
from stratafl.data.tables.kinds import BOOLEAN, UNSEEN
from stratafl.data.tables.table_encoding import EncodedColumn, TableEncoding

_ML, _ML_VERSION = "ai.onnx.ml", 2
_PREFIX = "model/"  # of all names in the graph of the model, so that columns may have any name
_AXIS = f"{_PREFIX}axis of columns"


def name_columns(path: Path, table: TableEncoding) -> None:
    """Put inputs by column in front of the only input of the model in a file."""
    onnx, compose = importlib.import_module("onnx"), importlib.import_module("onnx.compose")
    helper = onnx.helper
    model = compose.add_prefix(onnx.load(path), _PREFIX, rename_outputs=False)
    graph = model.graph
    (codes,), outputs = graph.input, {output.name for output in graph.output}
    inputs, nodes, parts = [], [helper.make_node("Constant", [], [_AXIS], value_ints=[1])], []
    for at, column in enumerate(table.columns):
        name = f"{column.name}_" if column.name in outputs else column.name
        kind = onnx.TensorProto.FLOAT if column.is_measured else onnx.TensorProto.STRING
        inputs.append(helper.make_tensor_value_info(name, kind, ["batch"]))
        number = name
        if not column.is_measured:
            number = f"code/{at}"
            nodes.append(helper.make_node("LabelEncoder", [name], [number], domain=_ML, **_lookup(column)))
        nodes.append(helper.make_node("Cast", [number], [f"double/{at}"], to=onnx.TensorProto.DOUBLE))
        nodes.append(helper.make_node("Unsqueeze", [f"double/{at}", _AXIS], [f"part/{at}"]))
        parts.append(f"part/{at}")
    nodes.append(helper.make_node("Concat", parts, [codes.name], axis=1))
    rest = list(graph.node)
    del graph.input[:], graph.node[:]
    graph.input.extend(inputs)
    graph.node.extend([*nodes, *rest])
    if not any(entry.domain == _ML for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(_ML, _ML_VERSION))
    kinds = {column.name: column.kind for column in table.columns}
    helper.set_model_props(model, {**{p.key: p.value for p in model.metadata_props}, "kinds": json.dumps(kinds)})
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _lookup(column: EncodedColumn) -> dict[str, Any]:
    """The attributes of a LabelEncoder that gives the codes of `EncodedColumn.codes`."""
    if column.kind == BOOLEAN:
        words = {form: float(word in YES) for word in sorted(YES | NO) for form in _spellings(word)}
        return {"keys_strings": [*words], "values_floats": [*words.values()], "default_float": float("nan")}
    codes = {form: float("nan") for word in sorted(MISSING) for form in _spellings(word)}
    codes |= {value: float(place) for place, value in enumerate(column.values)}
    return {"keys_strings": [*codes], "values_floats": [*codes.values()], "default_float": UNSEEN}


def _spellings(word: str) -> list[str]:
    return list(dict.fromkeys((word, word.upper(), word.capitalize())))
